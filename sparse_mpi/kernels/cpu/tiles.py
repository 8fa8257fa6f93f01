"""Shared parts of the compiled kernels: bit patterns, and half precision that is widened a tile at a time."""

from __future__ import annotations

import numba
import numpy as np
from numba.extending import overload

from sparse_mpi.arrays import Array

TILE = 2048  # entries worked on at once: two tiles stay in the first-level cache

compiled = numba.njit(nogil=True, cache=True, boundscheck=False)


summed = numba.njit(nogil=True, cache=True, boundscheck=False, fastmath={"reassoc"})  # sums in any order, vectorised


def readable(x: Array) -> np.ndarray:
    """Return ``x`` contiguous and of a type for compiled code: float16 as int16; bfloat16 is uint16 already."""
    x = np.ascontiguousarray(x)
    return x.view(np.int16) if x.dtype == np.float16 else x


def scratch_for(x: Array) -> np.ndarray:
    """Return memory for one widened tile of ``x``, none if ``x`` needs no widening."""
    return np.empty(TILE if x.itemsize == 2 else 0, np.int32)


def bits_of(part):
    """Return the bit patterns of a float32 or float64 array, sign included, without a copy."""
    return part.view(np.dtype(f"int{8 * part.itemsize}"))


@overload(bits_of, inline="always")
def _bits_of(part):
    """Choose the implementation of `bits_of` by type."""
    if part.dtype == numba.types.float64:
        return lambda part: part.view(np.int64)
    return lambda part: part.view(np.int32)


def widened(part, scratch):
    """Return ``part`` as float32 or float64: itself, or half precision widened to float32 in ``scratch``."""
    raise NotImplementedError("for compiled code only")


@overload(widened, inline="always")
def _widened(part, scratch):
    """Choose the implementation of `widened` by type."""
    if part.dtype == numba.types.uint16:
        return lambda part, scratch: _widened_bfloat16(part, scratch)
    if part.dtype == numba.types.int16:
        return lambda part, scratch: _widened_float16(part, scratch)
    return lambda part, scratch: part


@compiled
def _widened_bfloat16(part, scratch):
    """Widen by moving the bits into the upper half."""
    for i in range(part.size):
        scratch[i] = np.int32(part[i]) << 16
    return scratch[: part.size].view(np.float32)


@compiled
def _widened_float16(part, scratch):
    """Widen by moving exponent and mantissa into place; a multiplication, right for denormals too, rebiases them."""
    magnitudes = scratch[: part.size].view(np.float32)
    for i in range(part.size):
        scratch[i] = (np.int32(part[i]) & 0x7FFF) << 13
    for i in range(part.size):
        magnitudes[i] *= np.float32(2.0**112)
    for i in range(part.size):
        bits = np.int32(part[i])
        special = 0x7F800000 if (bits & 0x7C00) == 0x7C00 else 0
        scratch[i] |= special | ((bits & 0x8000) << 16)
    return magnitudes
