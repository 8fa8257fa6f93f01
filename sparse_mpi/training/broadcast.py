"""Make all ranks start from the same parameters and the same state of the optimizer."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks


def broadcast_parameters(params: Any, root_rank: int = 0, comm: Any = None) -> None:
    """Overwrite tensors with their values on ``root_rank``, so that a model starts equal on all ranks. Collective.

    Args:
        params: ``model.state_dict()`` (parameters and buffers) or ``model.named_parameters()``.
        root_rank: the rank whose values are sent.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.

    Raises:
        ValueError: names, shapes or dtypes differ between ranks; raised on every rank.
    """
    transport = as_comm(comm)
    named = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [(name, p) for name, p in named if isinstance(p, Tensor)]
    with same_on_all_ranks(transport) as say:
        say(params=" ".join(f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in tensors))
    with torch.no_grad():
        for _, p in tensors:
            flat = p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            received = torch.from_numpy(transport.bcast(flat, root_rank))
            p.copy_(received.view(p.dtype).view(p.shape))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, comm: Any = None) -> None:
    """Overwrite state and options of ``optimizer`` with those on ``root_rank``, which may have loaded a checkpoint.

    Collective.
    """
    transport = as_comm(comm)
    file = io.BytesIO()
    if transport.rank == root_rank:
        torch.save(optimizer.state_dict(), file)
    received = transport.bcast(np.frombuffer(file.getvalue(), np.uint8), root_rank)
    if transport.rank != root_rank:
        optimizer.load_state_dict(torch.load(io.BytesIO(received.tobytes()), "cpu", weights_only=True))
