"""Kernels from whole-array functions, for NumPy without Numba and for CuPy: several passes, no compiler."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, namespace, to_host
from sparse_mpi.sparse import index_dtype, magnitude_bits


def histogram(x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
    """See `base.Kernels.histogram`."""
    bits = magnitude_bits(x)
    if prefix:
        bits = bits[(bits >> shift) == prefix]
    elif shift < 8 * x.itemsize - 1:
        bits = bits[bits < (1 << shift)]
    bins = (bits >> (shift - width)) & ((1 << width) - 1)
    return to_host(namespace(x).bincount(bins, minlength=1 << width)).astype(np.int64)


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.select`."""
    positions = namespace(x).flatnonzero(magnitude_bits(x) >= threshold)
    if len(positions) > most:
        return None
    return positions.astype(index_dtype(len(x))), x[positions]


def accumulate_select(residual: Array, gradient: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.accumulate_select`."""
    residual += gradient
    return select(residual, threshold, most)


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    xp = namespace(x)
    x[indices] = xp.where(xp.isfinite(values), x[indices] - values, 0)
