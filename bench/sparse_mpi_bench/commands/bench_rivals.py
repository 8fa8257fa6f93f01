"""``python -m sparse_mpi bench rivals``: torch's ways to send fewer bytes beside ours, by train/rivals.py."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sparse_mpi.cli import values
from sparse_mpi.cli.options import option
from sparse_mpi.cli.values import Refused
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.benchmark import Benchmark, Output

DESCRIPTION = """\
Train one model by torch's ways and by ours: score, bytes, processor time and seconds of each. In a checkout, for the
models of train/; words behind -- are those of train/rivals.py, whose --help has the ways.

  python -m sparse_mpi bench rivals -- gpt2 --seeds 1 2 3 --json rivals.json -- --tiny
  python -m sparse_mpi bench rivals --rate 1gbit -- vgg --steps 28 -- --tiny --data digits
"""
PROGRAM = Path("train", "rivals.py")


def rivals(args: argparse.Namespace) -> Iterator[Output]:
    if not PROGRAM.is_file():
        raise Refused(f"bench rivals needs {PROGRAM} in the working directory: start it in a checkout of sparse_mpi")
    if not args.words:
        raise Refused(f"bench rivals needs the words of {PROGRAM} behind --, for example: bench rivals -- gpt2")
    program = [str(PROGRAM), *args.words]
    hosts = ["bench", "network", "--rate", args.rate, "--timeout", "86400", "--ranks", str(args.ranks), "--", *program]
    command = hosts if args.rate else ["run", "-n", str(args.ranks), *program]
    yield subprocess.run([sys.executable, "-m", "sparse_mpi", *command], check=False).returncode


RIVALS = Benchmark(
    "rivals",
    help="a model of train/ by torch's ways to send fewer bytes, and by ours",
    description=DESCRIPTION,
    options=(
        bench_options.processes,
        option("--rate", "of the links between emulated hosts, as of bench network", bench_options.turns),
        lambda parser: parser.set_defaults(**{values.WORDS: []}),
    ),
    measure=rivals,
)
