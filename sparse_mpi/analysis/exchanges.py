"""Check the alpha-beta model: fit it to measured exchanges on few ranks, and predict measured ones on more ranks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.costs.fit import nearest
from sparse_mpi.costs.model import Network
from sparse_mpi.reducer.arguments import takes

BENCHES = "bench allreduce, bench interleaved or bench compare"


class Exchange(NamedTuple):
    """The measured exchange of one candidate in a step."""

    candidate: str
    ranks: int
    messages: float
    bytes: float
    seconds: float
    rate: str = ""  # of the links, where they are emulated


class Prediction(NamedTuple):
    """A measured exchange and its predicted seconds."""

    measured: Exchange
    seconds: float

    @property
    def error(self) -> float:
        """Return the relative error of the predicted seconds, positive if they are too long."""
        return self.seconds / self.measured.seconds - 1


class Check(NamedTuple):
    """A fit to some exchanges at one rate, and what it predicts of others."""

    rate: str
    ranks: list[int]  # numbers of ranks of the exchanges it was fitted to
    network: Network
    predictions: list[Prediction]

    @property
    def median_error(self) -> float:
        """Return the median of the absolute relative errors."""
        return statistics.median(abs(prediction.error) for prediction in self.predictions)


def read(file: str | Path) -> list[Exchange]:
    """Read the exchanges that one of `BENCHES` recorded in ``file``.

    Raises:
        ValueError: the file is not of that kind, or of one rank, which exchanges nothing.
    """
    try:
        record = json.loads(Path(file).read_text())
        found = [exchange for job in record.get("jobs", [record]) for exchange in _of_job(job)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} must be a record that {BENCHES} wrote with --json: {error!r}") from None
    if alone := [exchange for exchange in found if exchange.ranks < 2]:
        raise ValueError(f"{file} must be of 2 ranks or more, got {alone[0].ranks}; run it under mpiexec")
    if wrong := [exchange for exchange in found if not exchange.seconds > 0]:
        raise ValueError(f"{file} must have exchanges of more than 0 seconds, got {wrong[0]}")
    return found


def _of_job(job: dict[str, Any]) -> list[Exchange]:
    """Return the exchanges of one job of a record, without two-level algorithms."""
    candidates = job["algorithms"] if "algorithms" in job else job["results"]
    return [
        Exchange(
            name,
            int(job["ranks"]),
            float(of["messages"]),
            float(of["bytes"]),
            float(of["exchange"]),
            str(job.get("rate", "")),
        )
        for name, of in candidates.items()
        if not takes(name.split()[0], "ranks_per_node")  # whose messages do not all go over the network
    ]


def fitted(measured: Sequence[Exchange]) -> Network:
    """Return the network nearest to the measured seconds; see `nearest`."""
    return nearest([e.messages for e in measured], [e.bytes for e in measured], [e.seconds for e in measured])


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


def check(known: Sequence[Exchange], others: Sequence[Exchange]) -> list[Check]:
    """Predict ``others`` from ``known`` exchanges, for each rate by itself.

    Raises:
        ValueError: at a rate of ``others`` fewer than two exchanges are known, too few to fit alpha and beta to.
    """
    checks = []
    for rate in dict.fromkeys(exchange.rate for exchange in others):
        base = [exchange for exchange in known if exchange.rate == rate]
        if len(base) < 2:
            raise ValueError(f"exchanges to fit to must be 2 or more at rate {rate or 'unknown'}, got {len(base)}")
        network = fitted(base)
        predictions = [
            Prediction(exchange, network.alpha * exchange.messages + network.beta * exchange.bytes)
            for exchange in others
            if exchange.rate == rate
        ]
        checks.append(Check(rate, sorted({exchange.ranks for exchange in base}), network, predictions))
    return checks
