"""``python -m sparse_mpi bench sparse-volume``: what each algorithm of `sparse_mpi.allreduce` sends, over ranks."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.arguments import AUTO
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.tools.analysis import keyed_volume
from sparse_mpi.tools.analysis.keyed_volume import KeyedVolume
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.bench.sparse_cases import CASES
from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.figures import save
from sparse_mpi.tools.figures.keyed_volume import figure

POWERS = [2**i for i in range(1, 11)]
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

TITLE = (
    f"{'case':<10} {'algorithm':<16} {'P':>5} {'entries':>9} {'result':>8} {'mean':>9} {'most':>9} {'control':>9} "
    f"{'msgs':>5} {'dense':>7} {'pairs':>7}"
)


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench sparse-volume``."""
    parser = kinds.add_parser(
        "sparse-volume",
        help="bytes and messages of sums of data that is sparse already, for 2 to 1024 ranks",
        description=DESCRIPTION,
    )
    add, algorithms = parser.add_argument, [AUTO, *ALGORITHMS]
    add(
        "--ranks",
        type=values.integer(1, MAX_RANKS),
        nargs="+",
        default=POWERS,
        metavar="P",
        help="default: powers of two from 2 to 1024",
    )
    add("--n", type=values.integer(1), default=10_000, help="keys that there are (default: 10000)")
    add("--entries", type=values.integer(1), default=100, help="that a rank has, at most (default: 100)")
    add("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME", help="of data (default: all)")
    add("--algorithms", nargs="+", choices=algorithms, default=algorithms, metavar="NAME", help="(default: all)")
    add(
        "--most-gigabytes",
        type=values.positive,
        default=12.0,
        metavar="GB",
        help="skip what needs more GB of memory (default: 12)",
    )
    add("--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were counted on")
    add("--plot", type=values.figure, metavar="FILE", help="draw bytes and messages over P (needs matplotlib)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print."""
    counted: list[KeyedVolume] = []
    skipped: list[dict[str, Any]] = []
    print(TITLE)
    for case in args.cases:
        for algorithm in args.algorithms:
            before: KeyedVolume | None = None
            for ranks in sorted(set(args.ranks)):
                found = _counted(case, algorithm, ranks, before, args)
                if isinstance(found, str):
                    skipped.append({"case": case, "algorithm": algorithm, "ranks": ranks, "reason": found})
                    print(f"{case:<10} {algorithm:<16} {ranks:>5}  skipped: {found}", flush=True)
                else:
                    before = found
                    counted.append(found)
                    print(_row(found), flush=True)
    print(f"\n{LEGEND}")
    volumes = {"volumes": [asdict(v) for v in counted], "skipped": skipped}
    if args.json:
        records.write(args.json, {"options": records.options(args)}, provenance(), volumes)
    if args.plot:
        save(partial(figure, [volumes]), args.plot)
    return 0


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


def _row(v: KeyedVolume) -> str:
    """Return the row of one count."""
    busiest = v.most + v.control
    over = [f"{busiest / least:7.3f}" if least else f"{'-':>7}" for least in (v.dense, v.pairs)]
    name = v.algorithm if v.chosen == v.algorithm else f"{v.algorithm}: {v.chosen}"
    return (
        f"{v.case:<10} {name:<16} {v.ranks:>5} {v.entries:>9} {v.result:>8} {v.sent / 1e3:>9.2f} {v.most / 1e3:>9.2f} "
        f"{v.control / 1e3:>9.2f} {v.messages:>5} {' '.join(over)}"
    )
