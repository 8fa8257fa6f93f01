"""One model on every rank: how replicas start equal, share a gradient, and are shown to have stayed equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

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


class FlatGradient:
    """A model's gradient as one flat buffer, whose views are the ``.grad`` of the parameters: autograd adds into it.

    Args:
        model: its parameters' ``.grad`` are replaced.
        keep: what a step leaves in the buffer stays there, for the next backward pass to add to; the buffer is the
            residual of a reducer ``in_place``. Means are then written into a second buffer. Else every step clears it.
    """

    def __init__(self, model: nn.Module, keep: bool = False) -> None:
        self._parameters = list(model.parameters())
        self._keep = keep
        self.flat = torch.zeros(sum(p.numel() for p in self._parameters))  # (n,) float32
        self._views = self._split(self.flat)
        self._mean = torch.zeros_like(self.flat) if keep else self.flat
        self._mean_views = self._split(self._mean) if keep else self._views
        self._written: Tensor | None = None  # where the mean has entries; None: anywhere
        self._attach(self._views)

    def attach(self) -> None:
        """Have backward passes add into this buffer, where another one of the same model took its place."""
        self._attach(self._views)

    def clear(self) -> None:
        """Get ready for a backward pass: zero the buffer, unless it is to keep what it has."""
        if not self._keep:
            self.flat.zero_()

    def check(self) -> None:
        """Raise RuntimeError unless backward passes still add into the buffer."""
        for number, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            if parameter.grad is not view:
                raise RuntimeError(
                    f"the .grad of parameter {number} must be a view of the flat gradient, but it was replaced and its "
                    "gradient is lost; do not call zero_grad(), which cuts the views off, nor assign to .grad"
                )

    @contextmanager
    def mean(self, total: SparseVector | Tensor, ranks: int) -> Iterator[None]:
        """Within, the parameters' ``.grad`` is ``total / ranks``, zero where ``total`` has no entry."""
        if not isinstance(total, SparseVector):
            torch.div(total, ranks, out=self._mean)
            self._written = None
        else:
            if self._written is None:
                self._mean.zero_()
            else:
                self._mean[self._written] = 0
            indices = total.indices.long()
            self._mean[indices] = total.values / ranks
            self._written = indices if self._keep else None  # a backward pass writes everywhere
        self._attach(self._mean_views)
        try:
            yield
        finally:
            self._attach(self._views)

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self._parameters])
        return [part.view_as(p) for p, part in zip(self._parameters, parts, strict=True)]

    def _attach(self, views: list[Tensor]) -> None:
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.grad = view


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
