"""The training job of a moment as a program: 24 steps on one rank, 12 on two, of 3 epochs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from sparse_mpi import World
from sparse_mpi.comm import Comm, NullComm
from sparse_train.data import Images
from sparse_train.data.share import Batches, share_of
from sparse_train.ranks.job import JobError
from sparse_train.records.journal import Outcome
from sparse_train.records.metrics import FILE
from sparse_train.tasks.images import ImageTask
from sparse_train.tasks.task import Task
from sparse_train.trainer.program import Program, Settings, Tiny

from .small_training import network, two_classes

QUIET = ["--no-progress", "--threads", "1"]
LOG = [*QUIET, "--log-every", "1", "--epochs", "3"]
NOBODY = "-1 -1 0"
SETTINGS = Settings(density=0.2, epochs=3, batch_size=10, lr=0.2, warmup_epochs=1, milestones=(2,), momentum=0.5)


class Struck(ImageTask):
    """A task in which the variable ``STRIKE``, ``STEP RANK SIGNAL``, sends that rank a signal before that step, from 0.

    Rank -1 is every rank. Where torchrun has started the ranks anew, nobody is sent one.
    """

    def __init__(self, model: torch.nn.Module, batches: Batches, rank: int) -> None:
        super().__init__(model, batches)
        self._rank = rank

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        at, whom, what = map(int, os.environ.get("STRIKE", NOBODY).split() if first_try else NOBODY.split())
        for number, batch in enumerate(super().train(epoch, first), epoch * self.steps + first):
            if number == at and whom in (self._rank, -1):
                os.kill(os.getpid(), signal.Signals(what))
            yield batch


def make(args, comm) -> Struck:
    model = network(args.seed)
    model.insert(4, torch.nn.Dropout(0.2))
    batches = Batches(Images(two_classes(80), two_classes(60), 2), args.batch_size, share_of(args, comm), args.seed)
    return Struck(model, batches, comm.rank)


def slowed(task: Struck, pause: float, begun: Callable[[], object]) -> Struck:
    """Have a task call ``begun()`` when its first batch is there, and wait for ``pause`` seconds before each."""
    plain, waiting = task.train, [begun]

    def train(epoch: int, first: int = 0) -> Iterator[Any]:
        for batch in plain(epoch, first):
            while waiting:
                waiting.pop()()
            time.sleep(pause)
            yield batch

    task.train = train  # type: ignore[method-assign]
    return task


PROGRAM = Program("small", "Small.", make, {"halves": SETTINGS}, {"halves": "nowhere"}, Tiny("halves", SETTINGS))


def outcomes(program: Any, size: int, folder: Path, *options: Any, **world: Any) -> list[Outcome]:
    """Run a program in this process on ``size`` ranks, quietly, and return the outcomes of those that are left.

    There are no events for TensorBoard, which take a third of the time of a small training.
    """
    words = [*QUIET, "--out", str(folder), *map(str, options)]
    args = [program.parse(words) for _ in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        found = World(size, **world).run(lambda comm: program.train(args[comm.rank], comm))
    return [outcome for outcome in found if outcome is not None]


def train(size: int, folder: Path, *options: str) -> Outcome:
    return outcomes(PROGRAM, size, folder, *LOG, *options)[0]


def refusals(ranks: Any, work: Callable[[Comm], object]) -> list[str]:
    """Return what each of the ``ranks`` is told when ``work`` ends in a `JobError` on all of them."""

    def refused(comm: Comm) -> str:
        with pytest.raises(JobError) as error:
            work(comm)
        return str(error.value)

    return ranks.run(refused)


def tiny(line: str, folder: Path) -> tuple[Task, Namespace]:
    """Make the tiny task of a program and its options, such as ``"lstm --task text"``; return all its options too."""
    name, *options = line.split()
    program = import_module(name).PROGRAM
    args = program.parse(["--tiny", *QUIET, "--out", str(folder), *options])
    chosen = program.programs[args.task] if "task" in args else program
    return chosen.make(args, NullComm()), args


def records(folder: Path, *events: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    return [line for line in lines if not events or line["event"] in events]


if __name__ == "__main__":
    PROGRAM.run()
