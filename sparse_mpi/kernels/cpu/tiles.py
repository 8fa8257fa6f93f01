"""What the compiled kernels share: bit patterns, and half precision widened a tile at a time."""

from __future__ import annotations

import numba
import numpy as np
from numba.extending import overload

from sparse_mpi.arrays import Array

TILE = 2048  # entries worked on at once: two tiles stay in the first-level cache

compiled = numba.njit(nogil=True, cache=True, boundscheck=False)


summed = numba.njit(nogil=True, cache=True, boundscheck=False, fastmath={"reassoc"})  # sums in any order, vectorised


def readable(x: Array) -> np.ndarray:
    """``x`` contiguous, as compiled code takes it: float16 as int16, bfloat16 as the uint16 that it is."""
    x = np.ascontiguousarray(x)
    return x.view(np.int16) if x.dtype == np.float16 else x


def scratch_for(x: np.ndarray) -> np.ndarray:
    """Room for a widened tile of ``x``."""
    return np.empty(TILE if x.itemsize == 2 else 0, np.int32)


def bits_of(part):
    """The bit patterns of a float32 or float64 array, sign included, without a copy."""
    return part.view(np.dtype(f"int{8 * part.itemsize}"))


@overload(bits_of, inline="always")
def _bits_of(part):
    if part.dtype == numba.types.float64:
        return lambda part: part.view(np.int64)
    return lambda part: part.view(np.int32)


def widened(part, scratch):
    """``part`` as float32 or float64: itself, or half precision as float32 within ``scratch``."""
    raise NotImplementedError("for compiled code only")


@overload(widened, inline="always")
def _widened(part, scratch):
    if part.dtype == numba.types.uint16:
        return lambda part, scratch: _widened_bfloat16(part, scratch)
    if part.dtype == numba.types.int16:
        return lambda part, scratch: _widened_float16(part, scratch)
    return lambda part, scratch: part


@compiled
def _widened_bfloat16(part, scratch):
    for i in range(part.size):
        scratch[i] = np.int32(part[i]) << 16
    return scratch[: part.size].view(np.float32)


@compiled
def _widened_float16(part, scratch):
    """Exponent and mantissa moved into place and rebiased by a multiplication, which denormals survive."""
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
