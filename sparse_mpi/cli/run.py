"""``sparse-mpi run``: start a program on several MPI ranks, whatever MPI this Python has."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from sparse_mpi.cli import values
from sparse_mpi.cli.extensions import hook
from sparse_mpi.cli.values import Refused

if TYPE_CHECKING:
    from sparse_mpi.cli.launch.find import Launch
    from sparse_mpi.cli.launch.launch_command import LaunchCommand

DESCRIPTION = """\
Start a Python program on several MPI ranks, with the mpiexec that belongs to this Python's MPI, or with srun inside a
Slurm allocation, and with the settings that this needs: for root, for more ranks than cores, for machines without
network hardware, and for threads to share the cores. Environment variables that are set already stay as they are.
Signals reach the job, its exit status is returned, and no process and no temporary file of it stays behind.

  %(prog)s -n 4 example.py --steps 100
  %(prog)s -n 4 -m sparse_mpi bench steps
  %(prog)s -n 4 --dry-run example.py        the command line, for a shell
  %(prog)s -n 4 --elastic --chaos mtti=60,seed=1,kinds=kill,freeze example.py

With --chaos, ranks of this machine are killed or frozen at random: what for, see docs/guides/break-it.md.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="start a program on several MPI ranks",
        usage="%(prog)s [-n RANKS] [options] (PROGRAM.py | -m MODULE) [arguments]",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "-n", "--ranks", type=values.integer(1), metavar="RANKS", help="processes (default: one for each core)"
    )
    text = "warn if there are more than R ranks for each core"
    parser.add_argument("--max-oversubscribe", type=values.positive, default=4.0, metavar="R", help=text)
    text = "let the other ranks go on when one is lost, where MPI can; for programs that use sparse_mpi.fault_tolerance"
    parser.add_argument("--elastic", action="store_true", help=text)
    text = (
        "kill ranks, or freeze them for a while, at random: mtti=SECONDS from fault to fault, seed=, "
        "kinds=kill,freeze, lasts=SECONDS, faults=MOST, after=SECONDS or a FILE that the job writes, record=FILE "
        "(default: none)"
    )
    parser.add_argument(
        "--chaos", type=values.checked(_check_chaos, "mtti=60,seed=1", "chaos"), metavar="mtti=60,seed=1", help=text
    )
    text = "write metrics to this folder, for `top`; see docs/guides/observe.md"
    parser.add_argument("--metrics", type=values.new_folder("metrics"), metavar="FOLDER", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the command line for a shell, and do nothing")
    text = "run a module, as python -m does, with the arguments that follow"
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help=text)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="a Python file and its arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sparse_mpi.cli.launch import environment, find, launch_command, start
    from sparse_mpi.comm.elastic.ulfm import REMEDY

    words = _command(args)
    try:
        line, job = launch_command.build(
            args.ranks, (sys.executable, *words), environment.cores(), os.environ, elastic=args.elastic
        )
    except find.LaunchError as error:
        raise SystemExit(f"run: {error}") from None
    if job.ranks > args.max_oversubscribe * job.cores:
        text = f"warning: {job.ranks} ranks share {job.cores} core{'s' if job.cores > 1 else ''} and will be slow"
        print(f"{text}; --max-oversubscribe {job.ranks / job.cores:g} accepts that", file=sys.stderr)
    if line.doubts:
        print(f"warning: {line.doubts}; {REMEDY}", file=sys.stderr)
    if args.dry_run:
        print(line.shell())
        return 0
    if sys.stderr.isatty():  # Python and its packages take a while on many ranks
        print(f"starting {job.ranks} ranks of {words[words[0] == '-m']}", file=sys.stderr)
    given = dict(os.environ)
    if args.metrics is not None:
        from sparse_mpi.monitor.metrics import DIRECTORY

        args.metrics.mkdir(parents=True, exist_ok=True)
        given[DIRECTORY] = str(args.metrics.absolute())
    if args.chaos is None:
        return start.run(line, given)
    chaos = _chaos(args, line, job)
    status = start.run(line, given, chaos.play())
    chaos.end(status)
    return status


def _check_chaos(text: str) -> None:
    try:
        hook("chaos", "it").text(text)
    except Refused as refused:
        raise argparse.ArgumentTypeError(str(refused)) from None


def _chaos(args: argparse.Namespace, line: LaunchCommand, job: Launch) -> Any:
    if sys.platform != "linux":
        raise Refused(f"--chaos needs Linux, whose /proc tells the ranks' processes; this is {sys.platform}")
    if not line.local:
        raise Refused("--chaos needs ranks that mpiexec starts on this machine, and not srun")
    from sparse_mpi.cli.launch.find import find_library

    return hook("chaos", "--chaos").job(args.chaos, job.ranks, args.elastic, find_library(os.environ).version)


def _command(args: argparse.Namespace) -> list[str]:
    if args.module is not None:
        if not args.module:
            raise Refused("-m needs the name of a module")
        if not exists(args.module[0]):
            raise Refused(f"there is no module {args.module[0]}")
        return ["-m", *args.module]
    program = args.program[args.program[:1] == ["--"] :]
    if not program:
        raise Refused("which program? Name a Python file, or -m and a module")
    if program[0].startswith("-"):
        raise Refused(f"unknown option {program[0]}; options of the program go after its name")
    if not os.path.exists(program[0]):
        raise Refused(f"there is no program {program[0]}")
    return program


def exists(module: str) -> bool:
    """Return True if Python finds the module. Neither it nor a package that it is in is imported."""
    first, *others = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # a module that was put together by hand
        return True
    for other in others:
        if spec is None or spec.submodule_search_locations is None:
            return False
        # By its last name alone: for a package without __init__.py Python would look up the imported parent
        spec = PathFinder.find_spec(other, list(spec.submodule_search_locations))
    return spec is not None
