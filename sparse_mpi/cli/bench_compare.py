"""``python -m sparse_mpi bench compare``: `bench interleaved` on emulated networks of several sizes and speeds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sparse_mpi.bench import records
from sparse_mpi.bench.comparison import BASELINE
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.cli import bench_interleaved
from sparse_mpi.cli.bench_network import RANKS
from sparse_mpi.cli.interleaved_plot import draw
from sparse_mpi.emulation import hosts, launch, rate
from sparse_mpi.emulation.probe import probe

PASSED = ("model", "n", "density", "steps", "warmup", "seconds", "batch", "seed", "algorithms", "wires")
DESCRIPTION = """\
When does it pay to send less? For each number of ranks and each rate: hosts that are emulated on this machine (see
bench network), and on them one job (bench interleaved) in which all algorithms, in all wire formats that they take,
take turns step by step, with selection and merging. Prints what each took, against dense in the same turns; whether
dense was a fair baseline; and up to which bandwidth it pays.

  python -m sparse_mpi bench compare --ranks 4 8 --rate 100mbit 1gbit none --json compare.json --plot compare.png
  python -m sparse_mpi bench compare --ranks 4 --rate 1gbit --algorithms oktopk topka --n 1000000 --steps 5

The ranks share this machine's cores: what they compute takes longer than on hosts of their own; columns "alone" have
the processor time instead. A link lets 128 KiB pass at once before it holds to its rate: a gradient must be so large
that messages are longer.
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench compare``."""
    parser = kinds.add_parser(
        "compare",
        help="all algorithms and wire formats against dense, on networks emulated on this machine",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = f"numbers of hosts, {RANKS[0]} to {RANKS[-1]}, a rank on each (default: 4 8)"
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8], metavar="P", help=text)
    text = "of every link, in each direction, as tc writes it, or none (default: 100mbit 1gbit)"
    parser.add_argument("--rate", nargs="+", default=["100mbit", "1gbit"], help=text)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a job may take (default: 3600)")
    bench_interleaved.add_options(parser)
    parser.add_argument("--json", metavar="FILE", help="also write all numbers, with what they were measured on")
    parser.add_argument("--plot", metavar="FILE", help="also draw step over bandwidth (needs matplotlib)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a job for each number of ranks and each rate; returns the exit code of the first that fails, else 0."""
    if wrong := [ranks for ranks in args.ranks if ranks not in RANKS]:
        raise SystemExit(f"--ranks must be {RANKS[0]} to {RANKS[-1]}, got {wrong[0]}")
    if not args.timeout > 0:
        raise SystemExit(f"--timeout must be more than 0 seconds, got {args.timeout:g}")
    try:
        limits = {text: rate.parse(text) for text in args.rate}
    except ValueError as error:
        raise SystemExit(f"--{error}") from None
    bench_interleaved.check(args)
    if lacks := hosts.missing():
        raise SystemExit("\n".join(["bench compare cannot run here:", *lacks]))
    jobs: list[dict[str, Any]] = []
    try:
        launcher = launch.find_launcher()
        for ranks in dict.fromkeys(args.ranks):
            for text, limit in limits.items():
                with hosts.emulate(ranks, limit) as emulated:
                    code = _run_one(emulated, launcher, text, args, jobs)
                if code:
                    return code
    except RuntimeError as error:
        raise SystemExit(f"bench compare cannot run here: {error}") from None
    print(summary(jobs))
    if args.json:
        records.write(args.json, {"options": records.options(args)}, provenance(), {"jobs": jobs})
    if args.plot:
        draw(jobs, args.plot)
    return 0


def _run_one(
    emulated: hosts.Hosts,
    launcher: launch.Launcher,
    text: str,
    args: argparse.Namespace,
    jobs: list[dict[str, Any]],
) -> int:
    """Measure the links, run the interleaved benchmark over them, add its record to ``jobs``; returns its exit code."""
    link = probe(emulated)
    print(
        f"{emulated.count} hosts, {text if emulated.rate else 'no limit'}: measured {link.rate / 1e6:.0f} Mbit/s, "
        f"{link.trip * 1e6:.0f} us round trip",
        flush=True,
    )
    file = emulated.folder / "interleaved.json"
    command = interleaved_command(args, link.rate / 1e9, link.trip / 2 * 1e6, file)
    code = launch.run(emulated, launcher, command, args.timeout)
    if code == 0:
        jobs.append({"rate": text, **json.loads(file.read_text())})
        print(flush=True)
    return code


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
    columns = [f"P={job['ranks']} {job['rate']}" for job in jobs]
    lines = ["speedup of a step over dense", f"{'':<{width}} " + " ".join(f"{column:>12}" for column in columns)]
    for name in names:
        speedups = [1 / job["results"][name]["over dense"] for job in jobs]
        lines.append(f"{name:<{width}} " + " ".join(f"{speedup:12.2f}" for speedup in speedups))
    over = [job["dense over ring"] for job in jobs]
    lines.append(f"{'dense over ring bound':<{width}} " + " ".join(f"{ratio:12.2f}" for ratio in over))
    return "\n".join(lines)
