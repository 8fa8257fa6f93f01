"""Evaluate a model on the test data of all ranks."""

from __future__ import annotations

import numpy as np
import torch

from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import together
from sparse_train.ranks.replicas import average_buffers
from sparse_train.records.meter import Meter
from sparse_train.tasks.task import Task


@torch.no_grad()
def evaluate(task: Task, comm: Comm) -> dict[str, float]:
    """Return the scores of the model on the test data of all ranks, or of all that are left; collective.

    The model keeps the mean of all ranks' buffers, and is left in evaluation mode.
    """
    average_buffers(task.model, comm)
    task.model.eval()

    def judged() -> np.ndarray:
        task.share.place, task.share.places = comm.rank, comm.size
        sums = Meter()
        for batch in task.test():
            sums.add(Meter(task.judge(batch)[1]))
        mine = sums.sums.reshape(-1).cpu().numpy()
        length = int(comm.allgather(np.array([len(mine)]), control=True).max())  # a rank without batches has no sums
        return comm.allreduce(np.pad(mine, (0, length - len(mine))), control=True)

    return task.scores(torch.from_numpy(together(comm, judged)))
