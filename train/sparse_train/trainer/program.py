"""A training program, from its command line to the last line it prints, and a choice of programs by task."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

import torch

from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import Team, TeamComm, team_of
from sparse_train.options import arguments
from sparse_train.options.arguments import Settings, Tiny
from sparse_train.options.local import local_steps
from sparse_train.options.optimization import OPTIMIZERS
from sparse_train.options.reduction import AUTO
from sparse_train.ranks import job
from sparse_train.ranks.device import choose, compute_deterministically, transport
from sparse_train.ranks.job import JobError
from sparse_train.records.journal import LEGEND, Outcome, conclude
from sparse_train.records.metrics import Metrics, record
from sparse_train.tasks.task import OnDevice, Task
from sparse_train.trainer.checkpoints import (
    Checkpoints,
    agree_on_folders,
    changes,
    check_identity,
    find,
    identity_of,
    resumed,
)
from sparse_train.trainer.loop import Training
from sparse_train.trainer.planning import Planning, advised

__all__ = ["Program", "Settings", "Tiny"]


@dataclass(frozen=True)
class Program:
    """A training program: its task and its settings.

    Args:
        name: name of the folder of results.
        description: text for --help: its purpose, then a few command lines.
        make: the task of this rank, with a model from `seeded`. OSError, ValueError or ImportError on any rank ends
            the job on all of them with a line from each; it communicates only after `job.agreed`, where all ranks are
            sure to go on.
        settings: settings by data set; the first is the default.
        folders: folder of each data set unless --data-dir is given.
        tiny: the settings of --tiny; ``make`` reads ``args.tiny`` and builds a small model.
        extend: adds the program's own options.
        check: raises ValueError for options that do not go together; the text begins with the name of one.
    """

    name: str
    description: str
    make: Callable[[Namespace, Comm], Task]
    settings: Mapping[str, Settings]
    folders: Mapping[str, str]
    tiny: Tiny
    extend: Callable[[ArgumentParser], None] = lambda parser: None
    check: Callable[[Namespace], None] = lambda args: None

    def parse(self, argv: Sequence[str] | None = None) -> Namespace:
        own = self.extend, self.check
        return arguments.parse(self.name, self.description, self.settings, self.folders, self.tiny, *own, argv)

    def train(self, args: Namespace, comm: Comm) -> Outcome | None:
        """Train on this rank, one of ``comm.size``, and return the outcome; None on a spare that was not needed.

        Raises JobError: on all ranks, when the job cannot be done, diverges, or ends in different replicas; Preempted:
        on all ranks, when one of them got a signal to end; there is a checkpoint to resume from.
        """
        comm = self._team(args, comm)
        agree_on_folders(args, comm)
        args.threads = args.threads or job.threads_per_rank(comm)
        torch.set_num_threads(args.threads)
        training, metrics, resume = self._prepared(args, comm)
        outcome = None
        with closing(metrics):
            if training.start(resume):
                if comm.rank == 0:
                    print(LEGEND)
                outcome = training.run()
                conclude(outcome, args, comm, metrics, training.predicted())
        if team := team_of(comm):
            team.close()
        return outcome

    def _team(self, args: Namespace, comm: Comm) -> Comm:
        """Return ``comm`` as one that may lose ranks, if an option asks for it.

        Raises JobError: it is asked for, and impossible.
        """
        if not args.elastic:
            return comm
        if comm.job.elastic is None:
            raise JobError(
                "--elastic needs an MPI whose ranks survive the loss of others, got one that ends the job; start with "
                "python -m sparse_mpi run --elastic (Open MPI 5), or leave out --elastic"
            )
        ranks = comm.size - args.spares
        if ranks < 1:
            raise JobError(f"--spares must be at most {comm.size - 1}, for one rank must train, got {args.spares}")
        if args.min_ranks > ranks:
            raise JobError(f"--min-ranks must be at most {ranks}, the number of ranks, got {args.min_ranks}")
        return TeamComm(Team(comm, spares=args.spares))

    def _prepared(self, args: Namespace, comm: Comm) -> tuple[Training, Metrics, Callable[[], None]]:
        """Return the training, its records, and a function that resumes it from a checkpoint, if there is one."""
        found, ranks = find(args, comm), comm.size - args.spares
        if found and args.spares and found.ranks > ranks:
            raise JobError(
                f"--spares must be at most {max(comm.size - found.ranks, 0)}, for {found.path} has the residuals of "
                f"{found.ranks} ranks, got {args.spares}"
            )
        if args.deterministic:
            compute_deterministically()
        device = choose(args.device, comm)
        with Bar(None, "loading data and model", comm.rank == 0 and args.progress):
            made = job.agreed(comm, lambda: self.make(args, comm))
        task = cast(Task, OnDevice(made, device, args.precision))
        if args.algo == AUTO:
            args.algo = found.identity["algo"] if found else advised(task.model, args, comm)
        identity = job.agreed(comm, lambda: identity_of(self.name, args, task))
        if found:
            job.agreed(comm, lambda: check_identity(found.path, found.identity, identity))
            if comm.rank == 0 and (said := changes(found.shared["options"], args)):
                print(said)
        before = found.shared if found else {}
        over = transport(args.transport, device, comm)
        planning = Planning(task.model, args, comm, over, before.get("plan", ""))
        optimizer = OPTIMIZERS[args.optimizer](task.model.parameters(), args)
        local = None
        if args.local_steps:
            local = job.agreed(comm, lambda: local_steps(task.model, optimizer, args, over))
            reducers = local.reducers
        else:
            plain = optimizer
            optimizer = job.agreed(comm, lambda: planning.distribute(plain))
            reducers = [bucket.reducer for bucket in optimizer.reduction.buckets]
        facts = {
            "k": sum(reducer.k for reducer in reducers),
            "parameters": sum(reducer.layout.size for reducer in reducers),
            "buckets": len(reducers),
            "items": task.items,
            "headline": task.headline,
            "computes_on": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        }
        position = resumed(found, task.steps) if found else None
        metrics = job.agreed(comm, lambda: record(args, comm, position, **facts))
        checkpoints = Checkpoints(args, identity, comm, metrics) if args.checkpoint_every else None
        training = Training(task, optimizer, args, comm, metrics, planning, checkpoints, local)

        def resume() -> None:
            if found:
                job.agreed(comm, lambda: training.resumption.resume(found.shared, found.own, found.ranks))

        return training, metrics, resume

    def run(self) -> None:
        job.run(self.train, self.parse())


class ByTask:
    """A choice of programs with the interface of `Program`, by ``--task`` or else by the data set of ``--data``.

    Args:
        programs: programs by task; the first is the default. No two have a data set in common.
        text: text for --help, on the tasks.
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
        argv = sys.argv[1:] if argv is None else argv
        return self.chosen(argv).parse(argv)

    def train(self, args: Namespace, comm: Comm) -> Outcome | None:
        return self.programs[args.task].train(args, comm)

    def run(self) -> None:
        job.run(self.train, self.parse())

    def _with_task(self, task: str, program: Program) -> Program:
        def extend(parser: ArgumentParser) -> None:
            parser.add_argument("--task", choices=tuple(self.programs), default=task, help=self._text)
            program.extend(parser)

        return replace(program, extend=extend)
