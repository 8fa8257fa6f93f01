"""The command line: one module a command, each with ``add_parser`` that says what it takes and ``run`` that does it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sparse_mpi.cli import algorithms, bench, doctor, gpu_check, plan, predict, run, selectors, trace, wires


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's arguments) names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparse_mpi", description="Sparse allreduce over MPI.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, algorithms, selectors, wires, bench, trace, predict, plan, doctor, gpu_check):
        module.add_parser(commands)
    args = parser.parse_args(argv)
    return args.run(args)
