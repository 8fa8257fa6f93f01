"""``python -m sparse_mpi bench sparse-compare``: `bench sparse` on emulated networks of several sizes and speeds."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import bench_sparse, emulated_grid, values
from sparse_mpi.tools.cli.figures import save
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.sparse_compare_table import table
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


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench sparse-compare``."""
    parser = kinds.add_parser(
        "sparse-compare",
        help="sums of data that is sparse already, on networks emulated on this machine",
        description=DESCRIPTION,
    )
    emulated_grid.add_options(parser, [2, 4, 8, 16], ["1gbit"], 1800)
    bench_sparse.add_options(parser)
    text = "write all numbers after each job; jobs that the file has are not repeated"
    parser.add_argument("--json", type=values.record, metavar="FILE", help=text)
    text = "draw time, bytes and memory over P, and over fill-in (needs matplotlib)"
    parser.add_argument("--plot", type=values.figure, metavar="FILE", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure what is lacking, and print."""
    bench_sparse.check(args)
    facts = {name: [*map(str, args.data)] if name == "data" else getattr(args, name) for name in FACTS}
    jobs = _earlier(args.json, facts)

    def command(ranks: int, link: Any, file: Path) -> list[str]:
        return job_command(args, ranks, file)

    done = [(job["ranks"], job["rate"]) for job in jobs]
    for job in emulated_grid.jobs("bench sparse-compare", args, command, done):
        jobs.append(job)
        if args.json:
            records.write(args.json, {"options": facts}, provenance(), {"jobs": jobs})
    jobs.sort(key=lambda job: (job["rate"], job["ranks"]))
    print(table(jobs))
    if args.plot:
        save(partial(figure, [{"jobs": jobs}]), args.plot)
    return 0


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
