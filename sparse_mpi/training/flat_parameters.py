"""Parameters of a torch model as one flat vector: `FlatParameters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.arrays import Array, synchronize_device, to_host
from sparse_mpi.sparse import SparseVector


class FlatParameters:
    """Some parameters, of one dtype on one device, and where each lies in a flat vector ``(n,)`` of them all."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.shapes: list[tuple[int, ...]] = [tuple(p.shape) for p in self.parameters]
        self.sizes: list[int] = [p.numel() for p in self.parameters]

    def zeros(self) -> Tensor:
        """Return a vector of zeros."""
        first = self.parameters[0]
        return torch.zeros(sum(self.sizes), dtype=first.dtype, device=first.device)

    def values(self) -> Tensor:
        """Return a copy of the parameters ``(n,)``."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    @torch.no_grad()
    def assign(self, flat: Tensor) -> None:
        """Give the parameters the values in ``flat`` ``(n,)``."""
        for parameter, value in zip(self.parameters, self.split(flat), strict=True):
            parameter.copy_(value)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return the view of each parameter's shape in ``flat`` ``(n,)``."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]


def write_mean(total: SparseVector | Tensor, divisor: float, out: Tensor) -> Tensor:
    """Overwrite ``out`` ``(n,)`` with ``total / divisor``, zero where ``total`` has no entry; return it."""
    if isinstance(total, SparseVector):
        return out.zero_().index_copy_(0, total.indices.long(), (total.values / divisor).to(out.dtype))
    return out.copy_(total / divisor)


def cut_by_tensor(arrays: Mapping[str, Array], sizes: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Return copies in host memory of arrays ``(n,)``, by name, cut into tensors of these ``sizes``."""
    ends = np.cumsum(sizes)[:-1]
    parts: dict[str, list[np.ndarray]] = {}
    for name, array in arrays.items():
        synchronize_device(array)
        parts[name] = np.split(to_host(array).copy(), ends)
    return [{name: parts[name][number] for name in parts} for number in range(len(sizes))]


def joined(tensors: Sequence[Mapping[str, np.ndarray]], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Invert `cut_by_tensor`; a tensor that lacks an array which others have counts as zeros."""
    names = {name: None for tensor in tensors for name in tensor}
    pairs = list(zip(tensors, sizes, strict=True))
    return {name: np.concatenate([t.get(name, np.zeros(n, np.float32)) for t, n in pairs]) for name in names}
