"""``python -m sparse_mpi bench compare``: `bench interleaved` on emulated networks of several sizes and speeds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparse_mpi.tools.bench.comparison import BASELINE
from sparse_mpi.tools.cli import bench_interleaved, emulated_grid, options
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.emulation.probe import Link
from sparse_mpi.tools.figures.compare import all_of

PASSED = ("model", "n", "density", "steps", "warmup", "seconds", "batch", "seed", "algorithms", "wires")
DESCRIPTION = """\
When does it pay to send less? For each number of ranks and each rate: hosts that are emulated on this machine (see
bench network), and on them one job (bench interleaved) in which all algorithms, in all wire formats that they take,
take turns step by step, with selection and merging. Prints what each took, against dense in the same turns; whether
dense was a fair baseline; and up to which bandwidth it pays.

  python -m sparse_mpi bench compare --ranks 4 8 --rate 100mbit 1gbit none --json compare.json --plot compare.png
  python -m sparse_mpi bench compare --ranks 4 --rate 1gbit --algorithms oktopk topka --n 1000000 --steps 5

The ranks share this machine's cores: what they compute takes longer than on hosts of their own; columns "alone" have
the processor time instead. A link lets a millisecond's worth pass at once before it holds to its rate.
"""


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Run a job for each number of ranks and each rate; yield the table and the record."""

    def command(ranks: int, link: Link, file: Path) -> list[str]:
        return interleaved_command(args, link.rate / 1e9, link.trip / 2 * 1e6, file)

    jobs = list(emulated_grid.jobs("bench compare", args, command))
    yield summary(jobs)
    yield {"jobs": jobs}


def interleaved_command(args: argparse.Namespace, gbit: float, latency: float, file: Path) -> list[str]:
    """Return the command line of the interleaved benchmark, after ``python -m sparse_mpi``."""
    command = ["bench", "interleaved", "--gbit", repr(gbit), "--latency", repr(latency), "--json", str(file)]
    for option in PASSED:
        value = getattr(args, option)
        if value is not None:
            command += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return command


def summary(jobs: list[dict[str, Any]]) -> str:
    """Return the speedups over dense, a row a candidate and a column a job."""
    names = list(dict.fromkeys(name for job in jobs for name in job["results"] if name != BASELINE))
    slow = [emulated_grid.slower(job["rate"], job["measured"]["gbit"]) for job in jobs]
    titles = [f"P={job['ranks']} {job['rate']}{'*' * bool(remark)}" for job, remark in zip(jobs, slow, strict=True)]
    width = max(map(len, [BASELINE, *names]))
    columns = [Column(title, 12, str(at), ".2f") for at, title in enumerate(titles)]
    rows: dict[str, list[float]] = {name: [1 / job["results"][name]["over dense"] for job in jobs] for name in names}
    rows["dense over ring bound"] = [job["dense over ring"] for job in jobs]
    table = Table(Column("", -width, "name"), *columns)
    lines = [
        "speedup of a step over dense",
        *table.lines({"name": n, **{str(at): ratio for at, ratio in enumerate(r)}} for n, r in rows.items()),
    ]
    if any(slow):
        lines.append(f"* measured below {emulated_grid.SLOW:.0%} of the nominal rate: cores, not links, were the limit")
    return "\n".join(lines)


COMPARE = Benchmark(
    "compare",
    help="all algorithms and wire formats against dense, on networks emulated on this machine",
    description=DESCRIPTION,
    options=(
        *emulated_grid.networks([4, 8], ["100mbit", "1gbit"], 3600),
        *bench_interleaved.MEASURED,
        options.json(),
        options.plot("also draw step over bandwidth (needs matplotlib)"),
    ),
    measure=measure,
    check=bench_interleaved.check,
    figure=all_of,
)
