"""``python -m sparse_mpi bench sparse-volume``: what each algorithm of `sparse_mpi.allreduce` sends, over ranks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.tools.analysis import keyed_volume
from sparse_mpi.tools.analysis.keyed_volume import KeyedVolume
from sparse_mpi.tools.bench.sparse_cases import CASES
from sparse_mpi.tools.cli import options
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, several
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.figures.draw_keyed_volume import figure

PILOT = 8  # so many times fewer ranks tell what memory will be needed, if none were counted before
DESCRIPTION = """\
Count what every algorithm of sparse_mpi.allreduce sends in a sum of float64 values, among ranks that all are in this
one process. Beside it stands what a ring of dense buffers sends at least, and what it takes to give all pairs of 16
bytes to all ranks, as pickled allgather and gloo's sum of sparse tensors do.

  python -m sparse_mpi bench sparse-volume --ranks 2 16 128 --cases uniform zipf --plot volume.png
"""
LEGEND = """\
kB of payload that a rank sends: mean over ranks, and most; control: what is told before, at most; messages at most;
dense, pairs: payload and control of the busiest rank over what a ring of dense buffers sends, and pairs to all"""
TABLE = Table(
    Column("case", -10, "case"),
    Column("algorithm", -16, lambda v: v.algorithm + f": {v.chosen}" * (v.chosen != v.algorithm)),
    Column("P", 5, "ranks"),
    Column("entries", 9, "entries"),
    Column("result", 8, "result"),
    Column("mean", 9, lambda v: v.sent / 1e3, ".2f"),
    Column("most", 9, lambda v: v.most / 1e3, ".2f"),
    Column("control", 9, lambda v: v.control / 1e3, ".2f"),
    Column("msgs", 5, "messages"),
    Column("dense", 7, lambda v: (v.most + v.control) / v.dense if v.dense else None, ".3f"),
    Column("pairs", 7, lambda v: (v.most + v.control) / v.pairs if v.pairs else None, ".3f"),
)


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield a line for every count, and the record."""
    counted: list[KeyedVolume] = []
    skipped = []
    yield TABLE.head
    for case in args.cases:
        for algorithm in args.algorithms:
            before: KeyedVolume | None = None
            for ranks in sorted(set(args.ranks)):
                found = _counted(case, algorithm, ranks, before, args)
                if isinstance(found, str):
                    skipped.append({"case": case, "algorithm": algorithm, "ranks": ranks, "reason": found})
                    yield f"{case:<10} {algorithm:<16} {ranks:>5}  skipped: {found}"
                else:
                    before = found
                    counted.append(found)
                    yield TABLE.row(found)
    yield f"\n{LEGEND}"
    yield {"volumes": [asdict(v) for v in counted], "skipped": skipped}


def _counted(
    case: str, algorithm: str, ranks: int, before: KeyedVolume | None, args: argparse.Namespace
) -> KeyedVolume | str:
    """Return what is counted, or why not; ``before`` was counted on fewer ranks."""

    def of(number: int) -> KeyedVolume:
        return keyed_volume.count(case, CASES[case], algorithm, number, args.n, args.entries)

    try:
        if before is None and ranks >= PILOT**2:
            before = of(ranks // PILOT)
        needed = before.gigabytes(ranks) if before else 0.0
        if needed > args.most_gigabytes:
            return f"may need {needed:.0f} GB, more than --most-gigabytes {args.most_gigabytes:g}"
        return of(ranks)
    except ValueError as refusal:
        return str(refusal)


SPARSE_VOLUME = Benchmark(
    "sparse-volume",
    help="bytes and messages of sums of data that is sparse already, for 2 to 1024 ranks",
    description=DESCRIPTION,
    options=(
        options.powers_of_ranks(),
        count("--n", 10_000, "keys that there are (default: 10000)"),
        count("--entries", 100, "that a rank has, at most (default: 100)"),
        several("--cases", CASES, "of data (default: all)"),
        several("--algorithms", [AUTO, *ALGORITHMS]),
        options.most_gigabytes(),
        options.json("also write all numbers, with what they were counted on"),
        options.plot("draw bytes and messages over P (needs matplotlib)"),
    ),
    measure=measure,
    figure=figure,
)
