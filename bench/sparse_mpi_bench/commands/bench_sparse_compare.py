"""``python -m sparse_mpi bench sparse-compare``: `bench sparse` on emulated networks of several sizes and speeds.

``python -m sparse_mpi bench sparse-volume``: what each algorithm of `sparse_mpi.allreduce` sends, over ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from sparse_mpi.cli import options
from sparse_mpi.cli.benchmark import Benchmark, OnFile, Output, earlier
from sparse_mpi.cli.options import count, several
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.analysis import keyed_volume
from sparse_mpi_bench.analysis.keyed_volume import CASES, KeyedVolume
from sparse_mpi_bench.commands import bench_network, bench_sparse
from sparse_mpi_bench.commands.bench_sparse import RIVALS, best_of_others
from sparse_mpi_bench.emulation.probe import below, shortfalls
from sparse_mpi_bench.figures.compare import sparse as figure
from sparse_mpi_bench.figures.draw_volume import keyed

FACTS = ("n", "entries", "cases", "fill_in", "data", "steps")  # what all jobs of a record have in common
DESCRIPTION = """\
For each number of ranks and each rate: hosts that are emulated on this machine (see bench network), and on them one job
(bench sparse), in which the algorithms of sparse_mpi.allreduce, pickled sums, a dense one and torch's gloo take turns.
Prints a table in Markdown. With --json it continues what that file has, job by job, or only prints and draws it.

  python -m sparse_mpi bench sparse-compare --ranks 2 4 8 16 --rate 1gbit --fill-in 1 2 4 8 16 --json runs/sparse.json
  python -m sparse_mpi bench sparse-compare --ranks 4 --cases uniform zipf --n 100000 --entries 1000 --steps 2

The ranks share this machine's cores: what they compute takes longer than on hosts of their own.
"""
Row = tuple[str, dict[str, Any], dict[str, Any]]  # the name of a case, its job, and the case
LEGEND = "cells: milliseconds, MB that the busiest host sent, peak memory over the bytes of input and result"


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the record after each job that it lacks, and the table."""
    facts = {name: [*map(str, args.data)] if name == "data" else getattr(args, name) for name in FACTS}
    if args.latency != "0":
        facts["latency"] = args.latency
    jobs = (earlier(args.json, facts) or {"jobs": []})["jobs"]

    def command(ranks: int, link: Any, file: Path) -> list[str]:
        return job_command(args, ranks, file)

    done = [(job["ranks"], job["rate"]) for job in jobs]
    for job in bench_network.jobs("bench sparse-compare", args, command, done):
        jobs.append(job)
        yield {"options": facts, "jobs": jobs}
    jobs.sort(key=lambda job: (job["rate"], job["ranks"]))
    yield as_markdown(jobs)
    yield OnFile(jobs=jobs)


def job_command(args: argparse.Namespace, ranks: int, file: Path) -> list[str]:
    """Return the command line of a job, after ``python -m sparse_mpi``. A fill-in is at most the ranks."""
    fill_ins = [each for each in args.fill_in if each <= ranks]
    given = options.command(argparse.Namespace(**vars(args) | {"fill_in": fill_ins}), FACTS)
    return ["bench", "sparse", "--json", str(file), *given, *([] if args.cases else ["--cases"])]


def as_markdown(jobs: Sequence[dict[str, Any]]) -> str:
    """Return rows of cases and ranks in Markdown, and what was not compared and why."""
    names = dict.fromkeys(name for job in jobs for name in job["cases"])
    found = [(name, job, job["cases"][name]) for name in names for job in jobs if name in job["cases"]]

    def gain(row: Row) -> str:
        candidates = row[2]["candidates"]
        best = best_of_others(candidates)
        return f"{best / candidates[AUTO]['seconds']:.2f}" if isfinite(best) else "-"

    table = Table(
        Column("keys", -1, lambda row: row[0]),
        Column("P", 1, lambda row: row[1]["ranks"]),
        Column("rate", 1, lambda row: row[1]["rate"] + "\\*" * below(row[1])),
        Column("fill-in", 1, lambda row: row[2]["fill-in"], ".2f"),
        Column("auto took", -1, lambda row: row[2]["chosen"]),
        *(Column(name, 1, partial(cell, name)) for name in (AUTO, *RIVALS)),
        Column("best rival / auto", 1, gain),
    )
    skipped = [(name, *each) for name, _, case in found for each in case["skipped"].items()]
    reasons = dict.fromkeys(f"{name}: no {each}: {why}" for name, each, why in skipped)
    return "\n".join([table.markdown(found), "", LEGEND, *reasons, *shortfalls(jobs)])


def cell(candidate: str, row: Row) -> str | None:
    """Return the numbers of a candidate, if it was compared."""
    numbers = row[2]["candidates"].get(candidate)
    if numbers is None:
        return None
    memory = "-" if numbers["memory"] is None else f"{numbers['memory']:.1f}"
    return f"{1e3 * numbers['seconds']:.3g}, {numbers['bytes'] / 1e6:.3g}, {memory}"


SPARSE_COMPARE = Benchmark(
    "sparse-compare",
    help="sums of data that is sparse already, on networks emulated on this machine",
    description=DESCRIPTION,
    options=(
        *bench_network.networks([2, 4, 8, 16], ["1gbit"], 1800),
        *bench_sparse.MEASURED,
        options.json("write all numbers after each job; jobs that the file has are not repeated"),
        options.plot("draw time, bytes and memory over P, and over fill-in (needs matplotlib)"),
    ),
    measure=measure,
    check=bench_sparse.check,
    figure=figure,
)


PILOT = 8  # so many times fewer ranks tell what memory will be needed, if none were counted before
COUNTING = """\
Count what every algorithm of sparse_mpi.allreduce sends in a sum of float64 values, among ranks that all are in this
one process. Beside it stands what a ring of dense buffers sends at least, and what it takes to give all pairs of 16
bytes to all ranks, as pickled allgather and gloo's sum of sparse tensors do.

  python -m sparse_mpi bench sparse-volume --ranks 2 16 128 --cases uniform zipf --plot volume.png
"""
COUNTED = """\
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


def count_all(args: argparse.Namespace) -> Iterator[Output]:
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
    yield f"\n{COUNTED}"
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
    description=COUNTING,
    options=(
        bench_options.POWERS_OF_RANKS,
        count("--n", 10_000, "keys that there are"),
        count("--entries", 100, "that a rank has, at most"),
        several("--cases", CASES, "of data (default: all)"),
        several("--algorithms", [AUTO, *ALGORITHMS]),
        bench_options.MOST_GIGABYTES,
        options.json("also write all numbers, with what they were counted on"),
        options.plot("draw bytes and messages over P (needs matplotlib)"),
    ),
    measure=count_all,
    figure=keyed,
)
