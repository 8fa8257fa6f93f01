"""Replicas of a model on every rank: average their buffers, compare them, evaluate them on the test data of all.

The reaction of a training run to lost ranks, and to spares that take their places: `Survivors`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import Team, team_of, together
from sparse_train.data.share import Share
from sparse_train.records.metrics import Meter, Metrics
from sparse_train.tasks.task import Task


@torch.no_grad()
def average_buffers(model: nn.Module, comm: Comm) -> None:
    """Replace floating-point buffers, batch normalisation's statistics, by their means over the ranks.

    Each rank has seen its own shard only; a model is evaluated, and saved, with the statistics of all.
    """
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([*(b.reshape(-1).cpu() for b in buffers), torch.ones(1)])
    total = torch.from_numpy(comm.allreduce(flat.numpy(), control=True))
    *sums, ranks = total.split([*(b.numel() for b in buffers), 1])
    for buffer, part in zip(buffers, (part / ranks for part in sums), strict=True):
        buffer.copy_(part.view_as(buffer))


def digest(model: nn.Module) -> str:
    seen = hashlib.sha256()
    for tensor in model.state_dict().values():
        seen.update(tensor.cpu().contiguous().numpy())
    return seen.hexdigest()


def identical(model: nn.Module, comm: Comm) -> bool:
    """Return whether parameters and buffers are the same on all ranks, to the last bit; collective."""
    digests = comm.allgather(np.frombuffer(bytes.fromhex(digest(model)), np.uint8), control=True)
    return bool((digests == digests[0]).all())


@torch.no_grad()
def evaluate(task: Task, comm: Comm) -> dict[str, float]:
    """Return the scores of the model on the test data of all remaining ranks; collective.

    The model gets the mean of all ranks' buffers, and is left in evaluation mode.
    """
    average_buffers(task.model, comm)
    task.model.eval()

    def test_sums() -> np.ndarray:
        task.share.place, task.share.places = comm.rank, comm.size
        sums = Meter()
        for batch in task.test():
            sums.add(Meter(task.forward_and_loss(batch)[1]))
        mine = sums.sums.reshape(-1).cpu().numpy()
        length = int(comm.allgather(np.array([len(mine)]), control=True).max())  # a rank without batches has no sums
        return np.asarray(comm.allreduce(np.pad(mine, (0, length - len(mine))), control=True))

    return task.scores(torch.from_numpy(together(comm, test_sums)))


class Survivors:
    """The remaining ranks of a run, and their samples.

    Args:
        comm: communicator of the replicas; only with a team some can be lost.
        least: the fewest ranks with which to go on.
        metrics: gets a record of each loss.
        give: returns the state for a spare that trains here from now on.
    """

    def __init__(self, comm: Comm, share: Share, least: int, metrics: Metrics, give: Callable[[], bytes]) -> None:
        self._team, self._share, self._least, self._metrics = team_of(comm), share, least, metrics
        self._give = give
        self._ranks = list(range(share.ranks))  # numbers at the start of the ranks that samples are dealt to
        self._recruits = 0  # spares that samples were dealt to
        self._epoch = 0
        self._began: dict[int, int] = {}  # steps of this epoch, and how many transactions were complete before each
        self._fresh = False  # this rank has joined before the step that comes

    def state(self) -> dict[str, Any]:
        return {
            "share": self._share.state(),
            "ranks": self._ranks,
            "recruits": self._recruits,
            "epoch": self._epoch,
            "began": self._began,
        }

    def join(self, state: dict[str, Any]) -> None:
        """Learn the other ranks' state, before the coming step."""
        self._share.join(state["share"])
        self._ranks, self._recruits = list(state["ranks"]), state["recruits"]
        self._epoch, self._began, self._fresh = state["epoch"], dict(state["began"]), True

    def regroup(self, epoch: int, step: int) -> bool:
        """Deal samples to the ranks that are there, from this step on; return False if they are the same as before.

        Call it before every step: that shows in which one a rank was lost.
        """
        if self._team is None:
            return False
        # Have spares take the places of lost ranks; spares that have just joined know of that.
        if not self._fresh:
            if epoch != self._epoch:
                self._epoch, self._began = epoch, {}
            self._team.recruit(self._give)
        self._fresh = False
        # Deal to the remaining ranks, and to these.
        lost, joined = self._lost(self._team), self._team.recruits[self._recruits :]
        if lost or joined:
            missed = [(before, rank) for rank, at in lost.items() for before, when in self._began.items() if when >= at]
            self._ranks = [rank for rank in self._ranks if rank not in lost] + joined
            self._recruits += len(joined)
            self._share.deal(epoch, step, self._ranks, sorted(missed))
            spent = sum(departure.seconds for departure in self._team.settled if {*departure.ranks} & {*lost})
            ranks = {"lost": sorted(lost), "joined": joined, "ranks": len(self._ranks)}
            self._metrics.write("loss", epoch=epoch + 1, after=step, **ranks, seconds=spent)
        self._began[step] = self._team.completed
        return bool(lost or joined)

    def too_few(self) -> str:
        if self._team is None:
            return ""
        left = len(self._ranks) - len(self._lost(self._team)) + self._team.reserve
        return f"{left} ranks are left, fewer than --min-ranks {self._least}" if left < self._least else ""

    def _lost(self, team: Team) -> dict[int, int]:
        return {rank: d.step for d in team.settled for rank in d.ranks if rank in self._ranks}
