"""The training job of a moment as a program: 24 steps on one rank, 12 on two, of 3 epochs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from sparse_mpi import World
from sparse_train.data import Images
from sparse_train.data.share import Batches, share_of
from sparse_train.records.journal import Outcome
from sparse_train.records.metrics import FILE
from sparse_train.tasks.images import ImageTask
from sparse_train.trainer.program import Program, Settings, Tiny

from .small_training import network, two_classes

LOG = ["--no-progress", "--log-every", "1", "--threads", "1", "--epochs", "3"]
SETTINGS = Settings(density=0.2, epochs=3, batch_size=10, lr=0.2, warmup_epochs=1, milestones=(2,), momentum=0.5)


class Struck(ImageTask):
    """A task in which the variable ``STRIKE``, ``STEP RANK SIGNAL``, sends that rank a signal before that step, from 0.

    Rank -1 is every rank.
    """

    def __init__(self, model: torch.nn.Module, batches: Batches, rank: int) -> None:
        super().__init__(model, batches)
        self._rank = rank

    def train(self, epoch: int, first: int = 0) -> Iterator[Any]:
        """Yield the batches, and send the signal on the way."""
        at, whom, what = map(int, os.environ.get("STRIKE", "-1 -1 0").split())
        for number, batch in enumerate(super().train(epoch, first), epoch * self.steps + first):
            if number == at and whom in (self._rank, -1):
                os.kill(os.getpid(), signal.Signals(what))
            yield batch


def make(args, comm) -> Struck:
    """Make a small network with dropout, which learns which half of an image is brighter."""
    model = network(args.seed)
    model.insert(4, torch.nn.Dropout(0.2))
    batches = Batches(Images(two_classes(80), two_classes(60), 2), args.batch_size, share_of(args, comm), args.seed)
    return Struck(model, batches, comm.rank)


PROGRAM = Program("small", "Small.", make, {"halves": SETTINGS}, {"halves": "nowhere"}, Tiny("halves", SETTINGS))


def train(size: int, folder: Path, *options: str) -> Outcome:
    """Run the program in this process on ``size`` ranks, and return its outcome."""
    args = [PROGRAM.parse(["--out", str(folder), *LOG, *options]) for _ in range(size)]
    return World(size).run(lambda comm: PROGRAM.train(args[comm.rank], comm))[0]


def records(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Return the records of a run with these events, in their order."""
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    return [line for line in lines if line["event"] in events]


if __name__ == "__main__":
    PROGRAM.run()
