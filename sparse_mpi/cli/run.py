"""``sparse-mpi run``: start a program on several MPI ranks, whatever MPI this Python has."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.extensions import hook
from sparse_mpi.cli.values import Refused

MANY = 4  # ranks for each core
DESCRIPTION = """\
Start a Python program on several MPI ranks of this machine, with the mpiexec that belongs to this Python's MPI and with
the settings that this needs: for root, for more ranks than cores, for machines without network hardware, and for
threads to share the cores. Environment variables that are set already stay as they are. Signals reach the job, its exit
status is returned, and no process and no temporary file of it stays behind. On several nodes start by srun or mpiexec.

  %(prog)s -n 4 example.py --steps 100
  %(prog)s -n 4 -m sparse_mpi bench steps
  %(prog)s -n 4 --dry-run example.py        the command line, for a shell
  %(prog)s -n 4 --elastic --chaos mtti=60,seed=1,kinds=kill,freeze example.py
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="start a program on several MPI ranks",
        usage="%(prog)s [-n RANKS] [options] (PROGRAM.py | -m MODULE) [arguments]",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add("-n", "--ranks", type=values.integer(1), metavar="RANKS", help="processes (default: one for each core)")
    text = "let the other ranks go on when one is lost, where MPI can; for programs that use sparse_mpi.fault_tolerance"
    add("--elastic", action="store_true", help=text)
    faults = values.where(str, str.strip, "words such as mtti=60,seed=1", "mtti=60,seed=1")
    text = "kill ranks of this machine, or freeze them for a while, at random; see docs/guides/break-it.md"
    add("--chaos", type=faults, metavar="mtti=60,seed=1", help=text)
    add("--dry-run", action="store_true", help="print the command line for a shell, and do nothing")
    text = "run a module, as python -m does, with the arguments that follow"
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help=text)
    add("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="a Python file and its arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sparse_mpi.cli.launch import environment, find, launch_command, start
    from sparse_mpi.comm.elastic import ulfm
    from sparse_mpi.comm.job.launcher import METRICS

    words = _words(args)
    try:
        line = launch_command.build(args.ranks, (sys.executable, *words), environment.cores(), os.environ, args.elastic)
    except find.LaunchError as error:
        raise SystemExit(f"run: {error}") from None
    if (folder := os.environ.get(METRICS)) and not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"{METRICS} must be a folder that can be written to, got {folder}; make it, or unset {METRICS}")
    ranks, cores = line.job.ranks, line.job.cores
    if ranks > MANY * cores:
        print(f"warning: {ranks} ranks share {cores} core{'s' * (cores > 1)} and will be slow", file=sys.stderr)
    if args.elastic and (doubts := ulfm.doubts(line.library.version)):
        print(f"warning: {doubts}; {ulfm.REMEDY}", file=sys.stderr)
    if args.dry_run:
        print(line.shell())
        return 0
    # Python and its packages take a while on many ranks
    print(f"starting {ranks} ranks of {words[words[0] == '-m']}", file=sys.stderr, flush=True)
    return start.run(line) if args.chaos is None else int(hook("chaos", "--chaos").run(args.chaos, line))


def _words(args: argparse.Namespace) -> list[str]:
    if args.module is not None:
        if not args.module:
            raise Refused("-m needs the name of a module")
        if find_spec(args.module[0].partition(".")[0]) is None:
            raise Refused(f"there is no module {args.module[0]}")
        return ["-m", *args.module]
    program: list[str] = args.program[args.program[:1] == ["--"] :]
    if not program:
        raise Refused("which program? Name a Python file, or -m and a module")
    if program[0].startswith("-"):
        raise Refused(f"unknown option {program[0]}; options of the program go after its name")
    if not os.path.exists(program[0]):
        python = Path(program[0]).name.startswith("python") and len(program) > 1
        remedy = f"; name the file alone: {' '.join(program[1:])}" if python else ""
        raise Refused(f"there is no program {program[0]}{remedy}")
    return program
