"""``--format``: times of benchmarks in the columns of nccl-tests or of the OSU Micro-Benchmarks, from their records.

A record that can be shown so has, for each candidate, ``rank seconds``, the mean seconds of a step on each rank,
``iterations``, and ``wrong``, the wrong entries of a checked step, or None if none was checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.cli.options import Option, option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi_bench.emulation.probe import below, shortfalls

TABLE, NCCL, OSU = "table", "nccl", "osu"
TYPES = {"float32": "float", "float64": "double"}  # as nccl-tests call them
DEFINED = """\
# columns of nccl-tests, all_reduce_perf, out of place; the name of the candidate follows
# size: of the dense vectors that are added up, also where few of their entries are sent
# time: of a step, mean over steps and ranks, with what is computed before, between and after messages
# algbw: size / time, as if all entries were sent; busbw: algbw * 2(P-1)/P, as a ring of dense vectors would need
# so for a sparse sum they are the speed of a dense sum that takes as long, and may exceed that of the link
# #wrong: entries that differ between ranks or from what the ranks gave, in one more step; N/A: not checked"""
MICRO = """\
# columns of OSU Micro-Benchmarks, osu_allreduce -f; the name of the candidate follows
# size: of the dense vectors that are added up, also where few of their entries are sent
# avg, min, max: over the ranks, of each one's mean time of a step, with what is computed"""


def form() -> Option:
    """Return ``--format``."""
    text = (
        f"of what is printed: {TABLE}, or the columns of nccl-tests (all results are checked), or of OSU's benchmarks"
    )
    return option("--format", text, choices=(TABLE, NCCL, OSU), default=TABLE)


class Timed(NamedTuple):
    """What was measured of one candidate."""

    name: str
    elements: int  # of the dense vectors
    dtype: str
    ranks: list[float]  # (P,) mean seconds of a step
    iterations: int
    wrong: int | None

    @property
    def size(self) -> int:
        """Bytes of a dense vector."""
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def algbw(self) -> float:
        """GB/s, as nccl-tests define it."""
        return self.size / fmean(self.ranks) / 1e9

    @property
    def busbw(self) -> float:
        """GB/s, as nccl-tests define it for an allreduce."""
        return self.algbw * 2 * (len(self.ranks) - 1) / len(self.ranks)


def microseconds(timed: Timed) -> str:
    """Return the mean time with as many digits as nccl-tests show."""
    mean = 1e6 * fmean(timed.ranks)
    return f"{mean:.{0 if mean >= 10_000 else 1 if mean >= 100 else 2}f}"


NAME = Column("", -1, lambda timed: f" # {timed.name}")
COLUMNS = {
    NCCL: (
        Column("size", 12, "size"),
        Column(" count", 13, "elements"),
        Column(" type", 9, lambda timed: TYPES[timed.dtype]),
        Column(" redop", 7, lambda timed: "sum"),
        Column(" root", 7, lambda timed: -1),
        Column(" time", 8, microseconds),
        Column(" algbw", 7, "algbw", ".2f"),
        Column(" busbw", 7, "busbw", ".2f"),
        Column("#wrong", 6, lambda timed: "N/A" if timed.wrong is None else timed.wrong),
        NAME,
    ),
    OSU: (
        Column("# Size", -10, "size"),
        Column("Avg Latency(us)", 17, lambda timed: 1e6 * fmean(timed.ranks), ".2f"),
        Column("Min Latency(us)", 17, lambda timed: 1e6 * min(timed.ranks), ".2f"),
        Column("Max Latency(us)", 17, lambda timed: 1e6 * max(timed.ranks), ".2f"),
        Column("Iterations", 11, "iterations"),
        NAME,
    ),
}


def show(record: Mapping[str, Any], form: str) -> str:
    """Return the text of a record: a block for each job or case; all lines but those of candidates begin with a #."""
    table = Table(*COLUMNS[form])
    head = f"#{table.head[1:]}".rstrip()
    units = (
        "#"
        + " ".join(
            column.pad(unit)
            for column, unit in zip(
                table.columns, ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""), strict=False
            )
        )[1:].rstrip()
    )
    lines = [DEFINED if form == NCCL else MICRO]
    for heading, timed in blocks(record):
        lines += ["#", f"# {heading}", head, *([units] if form == NCCL else []), *map(table.row, timed)]
    return "\n".join([*lines, *(f"# {line}" for line in shortfalls(record.get("jobs", [])))])


def blocks(record: Mapping[str, Any]) -> Iterator[tuple[str, list[Timed]]]:
    """Yield a heading and the candidates of every job, and of every case in it."""
    for job in record.get("jobs", [record]):
        place = f"P = {job['ranks']}" + (f", {job['rate']}{'*' * below(job)}" if "rate" in job else "")
        asked = job["options"]
        if "cases" in job:
            for name, case in job["cases"].items():
                yield f"{place}, {name}", _timed(case["candidates"], case["n"], "float64")
        else:
            what = f"{asked['model'] or 'one tensor'}, density {asked['density']:g}"
            size = job.get("n") or asked["n"]
            yield f"{place}, {what}", _timed(job.get("results") or job["algorithms"], size, "float32")


def _timed(candidates: Mapping[str, Mapping[str, Any]], elements: int, dtype: str) -> list[Timed]:
    return [
        Timed(name, elements, dtype, found["rank seconds"], found["iterations"], found.get("wrong"))
        for name, found in candidates.items()
    ]
