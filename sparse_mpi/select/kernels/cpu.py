"""Kernels for host memory, compiled by Numba: one pass each, one thread, the GIL released.

Inner loops run over slices (``part = bits[lo:hi]``), which Numba vectorises, not over computed bounds.
"""

from __future__ import annotations

import numba
import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.sparse import index_dtype

SEGMENT = 256  # entries counted at once; only segments that hold some are looked through

_compile = numba.njit(nogil=True, cache=True, boundscheck=False)


def _bits(x: Array) -> np.ndarray:
    """The bit patterns of ``x``, sign included, without a copy."""
    return x.view(np.dtype(f"int{8 * x.itemsize}"))


def histogram(x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
    """See `base.Kernels.histogram`."""
    bits = _bits(x)
    kind = bits.dtype.type
    magnitude = np.iinfo(bits.dtype).max
    counts = np.zeros(1 << width, np.int64)
    if shift == 8 * x.itemsize - 1:
        _histogram_all(bits, kind(magnitude), kind(shift - width), counts)
    else:
        mask = kind((1 << width) - 1)
        _histogram(bits, kind(magnitude), kind(shift), kind(prefix), kind(shift - width), mask, counts)
    return counts


@_compile
def _histogram_all(bits, magnitude, low, counts):
    for i in range(bits.size):
        counts[(bits[i] & magnitude) >> low] += 1


@_compile
def _histogram(bits, magnitude, shift, prefix, low, mask, counts):
    for i in range(bits.size):
        b = bits[i] & magnitude
        if b >> shift == prefix:
            counts[(b >> low) & mask] += 1


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.select`."""
    bits = _bits(x)
    kind = bits.dtype.type
    indices = np.empty(min(most, x.size) + SEGMENT, index_dtype(x.size))
    values = np.empty(indices.size, x.dtype)
    count = _select(x, bits, kind(np.iinfo(kind).max), kind(threshold), most, indices, values)
    return None if count > most else (indices[:count], values[:count])


@_compile
def _select(x, bits, magnitude, threshold, most, indices, values):
    count = 0
    for lo in range(0, x.size, SEGMENT):
        part = bits[lo : lo + SEGMENT]
        if _reached(part, magnitude, threshold):
            for i in range(part.size):
                if (part[i] & magnitude) >= threshold:
                    indices[count] = lo + i
                    values[count] = x[lo + i]
                    count += 1
            if count > most:
                break
    return count


@_compile
def _reached(part, magnitude, threshold):
    count = 0
    for i in range(part.size):
        count += (part[i] & magnitude) >= threshold
    return count


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    _subtract(x, indices, values)


@_compile
def _subtract(x, indices, values):
    for i in range(indices.size):
        at = indices[i]
        x[at] = x[at] - values[i] if np.isfinite(values[i]) else 0
