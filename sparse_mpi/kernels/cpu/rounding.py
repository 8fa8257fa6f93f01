"""Rounding to bfloat16."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.cpu.tiles import compiled


def to_bfloat16(x: Array) -> Array:
    """See `base.Kernels.to_bfloat16`."""
    x, rounded = np.ascontiguousarray(x), np.empty(len(x), np.uint16)
    each = _round_single if x.dtype == np.float32 else _round_double
    threads.each(lambda lo, hi: each(x[lo:hi], rounded[lo:hi]), threads.parts(len(x)))
    return rounded


@compiled
def _round_single(x, rounded):
    _round_bits(x.view(np.uint32), rounded)


@compiled
def _round_double(x, rounded):
    scratch = np.empty(1024, np.float32)
    for lo in range(0, x.size, scratch.size):
        part = x[lo : lo + scratch.size]
        for i in range(part.size):
            scratch[i] = part[i]
        _round_bits(scratch[: part.size].view(np.uint32), rounded[lo : lo + part.size])


@compiled
def _round_bits(bits, rounded):
    """The upper half, one more where the lower half is above a half, or is one and the upper half is odd."""
    for i in range(bits.size):
        wide = bits[i]
        up = (wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (wide & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        rounded[i] = np.uint16(0x7FC0) if nan else np.uint16(up)
