"""Parameters of a model as one flat vector, and arrays of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sparse_mpi.arrays import Array, synchronize_device, to_host


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of ``tensor``: of a DTensor its shard, in the same memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sharded_like(parameter: Any, shard: Tensor) -> Any:
    """Return this process's ``shard`` as a DTensor if ``parameter`` is one; else in its shape."""
    if not hasattr(parameter, "to_local"):
        return shard.view_as(parameter)
    return type(parameter.data).from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def cut_by_tensor(arrays: Mapping[str, Array], sizes: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Return copies in host memory of arrays ``(n,)``, by name, cut into tensors of these ``sizes``."""
    ends = np.cumsum(sizes)[:-1]
    parts: dict[str, list[np.ndarray]] = {}
    for name, array in arrays.items():
        synchronize_device(array)
        parts[name] = np.split(to_host(array).copy(), ends)  # copies, for arrays of error feedback change in place
    return [{name: parts[name][number] for name in parts} for number in range(len(sizes))]


def joined(tensors: Sequence[Mapping[str, np.ndarray]], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Invert `cut_by_tensor`; an array missing in one tensor counts as zeros."""
    names = {name: None for tensor in tensors for name in tensor}  # a dict keeps their order
    pairs = list(zip(tensors, sizes, strict=True))
    return {name: np.concatenate([t.get(name, np.zeros(n, np.float32)) for t, n in pairs]) for name in names}
