"""``python -m sparse_mpi bench sparse-compare``: `bench sparse` on emulated networks of several sizes and speeds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.tools.cli import bench_sparse, emulated_grid, markdown, options
from sparse_mpi.tools.cli.benchmark import Benchmark, OnFile, Output
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.sparse_rivals import RIVALS, best_of_others
from sparse_mpi.tools.figures.sparse_compare import figure

FACTS = ("n", "entries", "cases", "fill_in", "data", "steps")  # what all jobs of a record have in common
DESCRIPTION = """\
For each number of ranks and each rate: hosts that are emulated on this machine (see bench network), and on them one job
(bench sparse), in which the algorithms of sparse_mpi.allreduce, pickled sums, a dense one and torch's gloo take turns.
Prints a table in Markdown. With --json it continues what that file has, job by job, or only prints and draws it.

  python -m sparse_mpi bench sparse-compare --ranks 2 4 8 16 --rate 1gbit --fill-in 1 2 4 8 16 --json runs/sparse.json
  python -m sparse_mpi bench sparse-compare --ranks 4 --cases uniform zipf --n 100000 --entries 1000 --steps 2

The ranks share this machine's cores: what they compute takes longer than on hosts of their own.
"""
LEGEND = "cells: milliseconds, MB that the busiest host sent, peak memory over the bytes of input and result"


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the record after each job that it lacks, and the table."""
    facts = {name: [*map(str, args.data)] if name == "data" else getattr(args, name) for name in FACTS}
    jobs = _earlier(args.json, facts)

    def command(ranks: int, link: Any, file: Path) -> list[str]:
        return job_command(args, ranks, file)

    done = [(job["ranks"], job["rate"]) for job in jobs]
    for job in emulated_grid.jobs("bench sparse-compare", args, command, done):
        jobs.append(job)
        yield {"options": facts, "jobs": jobs}
    jobs.sort(key=lambda job: (job["rate"], job["ranks"]))
    yield table(jobs)
    yield OnFile(jobs=jobs)


def job_command(args: argparse.Namespace, ranks: int, file: Path) -> list[str]:
    """Return the command line of a job, after ``python -m sparse_mpi``. A fill-in is at most the ranks."""
    command = ["bench", "sparse", "--json", str(file)]
    for name in FACTS:
        value = getattr(args, name)
        given = value if isinstance(value, list) else [value]
        if name == "fill_in":
            given = [each for each in given if each <= ranks]
        if given or name == "cases":
            command += [f"--{name.replace('_', '-')}", *map(str, given)]
    return command


def _earlier(file: str | None, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the jobs that a file has.

    Raises:
        Refused: they are of something else.
    """
    if file is None or not Path(file).exists():
        return []
    record = json.loads(Path(file).read_text())
    for name, value in facts.items():
        if record["options"].get(name) != value:
            raise Refused(
                f"--{name.replace('_', '-')} must be {record['options'].get(name)} as in {file}, got {value}; "
                "name another file"
            )
    return record["jobs"]


def table(jobs: Sequence[dict[str, Any]]) -> str:
    """Return rows of cases and ranks in Markdown, and what was not compared and why."""
    head = ["keys", "P", "rate", "fill-in", "auto took", AUTO, *RIVALS, "best rival / auto"]
    rows = [head, ["---", *["---:"] * 3, "---", *["---:"] * (len(head) - 5)]]
    reasons: dict[str, None] = {}
    for name in dict.fromkeys(name for job in jobs for name in job["cases"]):
        for job in jobs:
            if name not in job["cases"]:
                continue
            case = job["cases"][name]
            found = case["candidates"]
            best = best_of_others(found)
            rows.append(
                [
                    name,
                    str(job["ranks"]),
                    job["rate"],
                    f"{case['fill-in']:.2f}",
                    case["chosen"],
                    *(cell(found.get(each)) for each in (AUTO, *RIVALS)),
                    f"{best / found[AUTO]['seconds']:.2f}" if isfinite(best) else "-",
                ]
            )
            reasons |= dict.fromkeys(f"{name}: no {each}: {why}" for each, why in case["skipped"].items())
    return "\n".join([markdown.table(rows), "", LEGEND, *reasons])


def cell(row: dict[str, Any] | None) -> str:
    """Return the numbers of a candidate."""
    if row is None:
        return "-"
    memory = "-" if row["memory"] is None else f"{row['memory']:.1f}"
    return f"{1e3 * row['seconds']:.3g}, {row['bytes'] / 1e6:.3g}, {memory}"


SPARSE_COMPARE = Benchmark(
    "sparse-compare",
    help="sums of data that is sparse already, on networks emulated on this machine",
    description=DESCRIPTION,
    options=(
        *emulated_grid.networks([2, 4, 8, 16], ["1gbit"], 1800),
        *bench_sparse.MEASURED,
        options.json("write all numbers after each job; jobs that the file has are not repeated"),
        options.plot("draw time, bytes and memory over P, and over fill-in (needs matplotlib)"),
    ),
    measure=measure,
    check=bench_sparse.check,
    figure=figure,
)
