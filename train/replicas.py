"""One model on every rank: how replicas start equal, share a gradient, and are shown to have stayed equal."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from sparse_mpi import SparseVector
from sparse_mpi.comm import Comm


@torch.no_grad()
def broadcast(model: nn.Module, comm: Comm) -> None:
    """Give ``model`` the parameters and buffers it has on rank 0."""
    for tensor in model.state_dict().values():
        flat = tensor.reshape(-1).numpy()
        tensor.copy_(torch.from_numpy(comm.bcast(flat if comm.rank == 0 else flat[:0])).view_as(tensor))


def flat_gradient(model: nn.Module) -> Tensor:
    """A zero gradient ``(n,)`` float32 whose views are the ``.grad`` of parameters: autograd adds into it.

    Clear it in place; ``zero_grad(set_to_none=True)``, the default of optimizers, would cut the views off.
    """
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def write_mean(gradient: Tensor, total: SparseVector | Tensor, ranks: int) -> None:
    """``total / ranks`` into the flat ``gradient``, zero where ``total`` has no entry."""
    if isinstance(total, SparseVector):
        gradient.zero_()
        gradient[total.indices.long()] = total.values / ranks
    else:
        torch.div(total, ranks, out=gradient)


@torch.no_grad()
def average_buffers(model: nn.Module, comm: Comm) -> None:
    """Replace floating-point buffers, batch normalisation's statistics, by their means over the ranks.

    Each rank has seen its own shard only; a model is evaluated, and saved, with the statistics of all.
    """
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([b.reshape(-1) for b in buffers])
    mean = torch.from_numpy(comm.allreduce(flat.numpy(), control=True)) / comm.size
    for buffer, part in zip(buffers, mean.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


def identical(model: nn.Module, comm: Comm) -> bool:
    """Whether parameters and buffers are the same on all ranks, to the last bit."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy())
    digests = comm.allgather(np.frombuffer(digest.digest(), np.uint8), control=True)
    return bool((digests == digests[0]).all())
