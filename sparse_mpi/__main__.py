# PYTHON_ARGCOMPLETE_OK
"""``python -m sparse_mpi`` and ``sparse-mpi``: the command line.

A command is a module with ``add_parser``, which declares its options and the function that runs it. It is imported on
use. Commands of the package sparse_mpi_bench join by entry points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from signal import SIGPIPE

from sparse_mpi.checks import removed
from sparse_mpi.cli.extensions import REMEDY, commands
from sparse_mpi.cli.records import program, versions
from sparse_mpi.cli.values import Parser, Refused

COMMANDS = {
    "run": "sparse_mpi.cli.run",
    "predict": "sparse_mpi.predict.predict_command",
    "plan": "sparse_mpi.planning.plan_command",
    "doctor": "sparse_mpi.cli.doctor.command",
}
WORKBENCH = ("bench", "top")  # commands of sparse_mpi_bench


def parser(word: str | None = None) -> Parser:
    known = {name: EntryPoint(name, f"{module}:add_parser", "") for name, module in COMMANDS.items()}
    # An older sparse_mpi_bench has commands that are gone
    known |= {name: entry for name, entry in commands().items() if name not in removed()}
    note = None if "bench" in known else f"{', '.join(WORKBENCH)}: of the package sparse_mpi_bench, {REMEDY}"
    made = Parser(prog=program(), description="Sparse allreduce over MPI.", epilog=note)
    made.add_argument("--version", action="version", version=f"sparse_mpi {versions().get('sparse_mpi', 'unknown')}")
    made.set_defaults(run=None)
    below = made.add_subparsers(title="commands", metavar="COMMAND")
    for name in [word] if word in known else known:
        known[name].load()(below)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    word = next(iter(sys.argv[1:] if argv is None else argv), None)
    known = parser(word)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        with suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(known)
    if word in WORKBENCH and "bench" not in commands():
        known.error(f"{word} is of the package sparse_mpi_bench, {REMEDY}")
    args = known.parse_args(argv)
    if args.run is None:
        known.print_help()
        return 0
    try:
        return int(args.run(args))
    except Refused as refused:
        known.prog = f"{known.prog} {word}"
        known.error(str(refused))


def start() -> int:
    from sparse_mpi.comm.conversion import MissingMPI
    from sparse_mpi.kernels.heap import keep_freed_memory

    keep_freed_memory()
    try:
        status = main()
        sys.stdout.flush()
        return status
    except MissingMPI as error:
        raise SystemExit(f"{program()}: {error}") from None
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE


if __name__ == "__main__":
    raise SystemExit(start())
