"""Replicas of a model on every rank: average their buffers, compare them, evaluate them on the test data of all."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import nn

from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import together
from sparse_train.records.meter import Meter
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
    """Return the SHA-256 of parameters and buffers, in hexadecimal digits."""
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
    """Return the scores of the model on the test data of all ranks, or of all that are left; collective.

    The model keeps the mean of all ranks' buffers, and is left in evaluation mode.
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
        return comm.allreduce(np.pad(mine, (0, length - len(mine))), control=True)

    return task.scores(torch.from_numpy(together(comm, test_sums)))
