"""The command line: one module a command, each with ``add_parser`` that says what it takes and ``run`` that does it."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_mpi.bench.provenance import program
from sparse_mpi.cli import algorithms, bench, doctor, draw, gpu_check, plan, predict, run, selectors, trace, wires
from sparse_mpi.cli.parsing import Parser, Refused


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's arguments) names; returns the exit code."""
    known = parser()
    args = known.parse_args(argv)
    try:
        return args.run(args)
    except Refused as refused:
        known.refuse(refused, argv)


def parser() -> Parser:
    """Return the parser of all commands."""
    made = Parser(prog=program(), description="Sparse allreduce over MPI.")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, algorithms, selectors, wires, bench, trace, predict, plan, draw, doctor, gpu_check):
        module.add_parser(commands)
    return made
