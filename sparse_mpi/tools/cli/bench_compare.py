"""``python -m sparse_mpi bench compare``: `bench interleaved` on emulated networks of several sizes and speeds."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.comparison import BASELINE
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import bench_interleaved, emulated_grid, values
from sparse_mpi.tools.cli.figures import save
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


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench compare``."""
    parser = kinds.add_parser(
        "compare",
        help="all algorithms and wire formats against dense, on networks emulated on this machine",
        description=DESCRIPTION,
    )
    emulated_grid.add_options(parser, [4, 8], ["100mbit", "1gbit"], 3600)
    bench_interleaved.add_options(parser)
    parser.add_argument(
        "--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were measured on"
    )
    parser.add_argument(
        "--plot", type=values.figure, metavar="FILE", help="also draw step over bandwidth (needs matplotlib)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a job for each number of ranks and each rate, and print what they found."""
    bench_interleaved.check(args)

    def command(ranks: int, link: Link, file: Path) -> list[str]:
        return interleaved_command(args, link.rate / 1e9, link.trip / 2 * 1e6, file)

    jobs = list(emulated_grid.jobs("bench compare", args, command))
    print(summary(jobs))
    if args.json:
        records.write(args.json, {"options": records.options(args)}, provenance(), {"jobs": jobs})
    if args.plot:
        save(partial(all_of, [{"jobs": jobs}]), args.plot)
    return 0


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
    width = max(map(len, [BASELINE, *names]))
    slow = [emulated_grid.slower(job["rate"], job["measured"]["gbit"]) for job in jobs]
    columns = [f"P={job['ranks']} {job['rate']}{'*' * bool(remark)}" for job, remark in zip(jobs, slow, strict=True)]
    lines = ["speedup of a step over dense", f"{'':<{width}} " + " ".join(f"{column:>12}" for column in columns)]
    for name in names:
        speedups = [1 / job["results"][name]["over dense"] for job in jobs]
        lines.append(f"{name:<{width}} " + " ".join(f"{speedup:12.2f}" for speedup in speedups))
    over = [job["dense over ring"] for job in jobs]
    lines.append(f"{'dense over ring bound':<{width}} " + " ".join(f"{ratio:12.2f}" for ratio in over))
    if any(slow):
        lines.append(f"* measured below {emulated_grid.SLOW:.0%} of the nominal rate: cores, not links, were the limit")
    return "\n".join(lines)
