"""Programs for several tasks in one file, of which the command line chooses one."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparse_mpi.comm import Comm
from sparse_mpi.tools.cli.parsing import Parser
from sparse_train.ranks import job
from sparse_train.records.journal import Outcome
from sparse_train.trainer.program import Program


class ByTask:
    """A choice of programs with the interface of `Program`, by ``--task`` or else by the data set of ``--data``.

    Args:
        programs: by task; the first is the default. No two have a data set in common.
        text: for --help, what the tasks are.
    """

    def __init__(self, programs: Mapping[str, Program], text: str) -> None:
        self.programs = {task: self._with_task(task, program) for task, program in programs.items()}
        self._text = text

    def chosen(self, argv: Sequence[str]) -> Program:
        """Return the program that a command line chooses.

        If ``--data`` is for another task than ``--task``, the process ends with a line on stderr.
        """
        parser = Parser(usage=SUPPRESS, add_help=False)
        parser.add_argument("--task")
        parser.add_argument("--data")
        given, _ = parser.parse_known_args(argv)
        default = next(iter(self.programs))
        meant = next((task for task, program in self.programs.items() if given.data in program.folders), None)
        if meant and given.task in self.programs and given.task != meant:
            sets = ", ".join(self.programs[given.task].settings)
            wrong = f"{given.data} is for --task {meant}, not {given.task}"
            parser.error(f"argument --data: {wrong}; leave out --task, or take {sets}")
        return self.programs.get(given.task or meant or default, self.programs[default])

    def parse(self, argv: Sequence[str] | None = None) -> Namespace:
        """Return the options of the chosen program; see `Program.parse`."""
        argv = sys.argv[1:] if argv is None else argv
        return self.chosen(argv).parse(argv)

    def train(self, args: Namespace, comm: Comm) -> Outcome | None:
        """Train on this rank; see `Program.train`."""
        return self.programs[args.task].train(args, comm)

    def run(self) -> None:
        """Read the command line and train; see `Program.run`."""
        job.run(self.train, self.parse())

    def _with_task(self, task: str, program: Program) -> Program:
        """Return ``program`` with the option --task, by which it is chosen."""

        def extend(parser: ArgumentParser) -> None:
            parser.add_argument("--task", choices=tuple(self.programs), default=task, help=self._text)
            program.extend(parser)

        return replace(program, extend=extend)
