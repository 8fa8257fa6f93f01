"""Steps that benchmarks measured, read from their records, and divided into those to fit to and those to predict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.reduction.arguments import spelled, takes
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import MODELS

BENCHES = "bench allreduce, bench interleaved or bench compare"


class Exchange(NamedTuple):
    """A measured step of one candidate. Times are seconds."""

    candidate: str  # as tables have it: oktopk packed
    ranks: int
    n: int
    density: float
    seconds: float  # of the exchange: of the rank that spends least in it, unless ``longest``
    step: float  # of the slowest rank
    cores: int  # of the machine
    bytes: float = 0.0  # of the busiest rank
    rate: str = ""  # of the links, where they are emulated
    gbit: float | None = None  # what a link of them was measured to give
    burst: float = 0.0  # bytes that it lets pass at once
    longest: bool = False  # whether `seconds` is that of the rank that spends most in it

    @property
    def spelled(self) -> str:
        """Return the candidate as a command line spells it: oktopk:wire=packed."""
        name, _, wire = self.candidate.partition(" ")
        return f"{name}:wire={wire}" if wire else name

    @property
    def job(self) -> tuple[str, int, int, float]:
        """Return what candidates of the same turns have in common."""
        return self.rate, self.ranks, self.n, self.density


def read(file: str | Path) -> list[Exchange]:
    """Read the steps that one of `BENCHES` recorded in ``file``.

    Raises:
        ValueError: the file is not of that kind, or of one rank, which exchanges nothing.
    """
    try:
        record = json.loads(Path(file).read_text())
        found = [exchange for job in record.get("jobs", [record]) for exchange in _of_job(job, record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} must be a record that {BENCHES} wrote with --json: {error!r}") from None
    if alone := [exchange for exchange in found if exchange.ranks < 2]:
        raise ValueError(f"{file} must be of 2 ranks or more, got {alone[0].ranks}; run it under mpiexec")
    if wrong := [exchange for exchange in found if not exchange.seconds > 0]:
        raise ValueError(f"{file} must have exchanges of more than 0 seconds, got {wrong[0]}")
    return found


def _of_job(job: dict[str, Any], record: dict[str, Any]) -> list[Exchange]:
    """Return the steps of one job of a record, without algorithms that need shapes or nodes."""
    options: dict[str, Any] = job["options"]
    together = "algorithms" in job  # of bench allreduce, where algorithms share one message format
    wire = options.get("wire") if together else None
    candidates = job["algorithms"] if together else job["results"]
    n = job.get("n") or options["n"] or _length(options["model"])
    gbit = None if together or options.get("gbit") is None else float(options["gbit"])
    return [
        Exchange(
            f"{name} {wire}" if wire and takes(name, "wire", wire) else name,
            int(job["ranks"]),
            int(n),
            float(options["density"]),
            float(of["exchange"]),
            float(of["step"]),
            int(job.get("cpus") or record["cpus"]),
            float(of["bytes"]),
            str(job.get("rate", "")),
            gbit,
            _burst(job, gbit),
            together,
        )
        for name, of in candidates.items()
        if predictable(name.split()[0])
    ]


def _burst(job: dict[str, Any], gbit: float | None) -> float:
    """Return the bytes that the links of a job let pass at once."""
    if not job.get("rate") or gbit is None:
        return 0.0
    old = max(128 << 10, gbit * 1e9 / 8 * 1e-3)  # of all emulated links, before records told it
    return float(job["measured"].get("burst", old)) if "measured" in job else old


def predictable(name: str) -> bool:
    """Tell if the length of the gradient alone tells the traffic of an algorithm, and all of it uses the network."""
    name = spelled(name)[0]
    return not (takes(name, "rank") or takes(name, "ranks_per_node"))


def _length(model: str) -> int:
    """Return the elements of a model's gradient."""
    return Layout.of([shape for _, shape in MODELS[model]()]).size


def held_out(measured: Iterable[Exchange], ranks: Sequence[int]) -> tuple[list[Exchange], list[Exchange]]:
    """Divide exchanges into those to fit to and those held out, which are the ones on ``ranks`` ranks.

    Raises:
        ValueError: no exchange was measured on one of ``ranks``, or none on others.
    """
    measured = list(measured)
    had = sorted({exchange.ranks for exchange in measured})
    if lacking := sorted(set(ranks) - set(had)):
        raise ValueError(f"ranks must be some of those measured, {', '.join(map(str, had))}, got {lacking[0]}")
    if set(had) <= set(ranks):
        raise ValueError(f"ranks must leave some to fit to, got all that were measured, {', '.join(map(str, had))}")
    return [e for e in measured if e.ranks not in ranks], [e for e in measured if e.ranks in ranks]
