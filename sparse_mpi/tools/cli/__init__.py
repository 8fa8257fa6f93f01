"""The command line: one module a command, each with ``add_parser`` that says what it takes and ``run`` that does it."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_mpi.tools.bench.records import program, versions
from sparse_mpi.tools.cli import bench, doctor, draw, gpu_check, plan, run, tables
from sparse_mpi.tools.cli.predict import PREDICT
from sparse_mpi.tools.cli.trace import TRACE
from sparse_mpi.tools.values import Parser, Refused


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's arguments) names; returns the exit code."""
    known = parser()
    args = known.parse_args(argv)
    if args.run is None:
        known.print_help()
        return 0
    try:
        return args.run(args)
    except Refused as refused:
        known.refuse(refused, argv)


def parser() -> Parser:
    """Return the parser of all commands."""
    made = Parser(prog=program(), description="Sparse allreduce over MPI.")
    made.add_argument(
        "--version", action="version", version=f"sparse_mpi {versions().get('sparse_mpi', 'that is not installed')}"
    )
    made.set_defaults(run=None)
    commands = made.add_subparsers(title="commands", metavar="COMMAND")
    for command in (run, tables, bench, TRACE, PREDICT, plan, draw, doctor, gpu_check):
        command.add_parser(commands)
    return made
