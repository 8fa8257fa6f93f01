"""Round values to half precision, and subtract what was sent of all values."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.cpu.tiles import compiled

PIECE = 1024  # values that are rounded at a time


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    """See `base.Kernels.to_bfloat16`."""
    x, rounded = np.ascontiguousarray(x), np.empty(len(x), np.uint16)
    wide = x[:0] if back is None else back
    threads.each(lambda lo, hi: _to_bfloat16(x[lo:hi], rounded[lo:hi], wide[lo:hi]), threads.parts(len(x)))
    return rounded


@compiled
def _to_bfloat16(x, rounded, back):
    """Round a piece that fits into the cache at a time, by way of float32; write it ``back`` unless that is empty."""
    scratch = np.empty(PIECE, np.float32)
    for lo in range(0, x.size, PIECE):
        part, codes = x[lo : lo + PIECE], rounded[lo : lo + PIECE]
        for i in range(part.size):
            scratch[i] = part[i]
        bits = scratch[: part.size].view(np.uint32)
        _round_bits(bits, codes)
        wide = back[lo : lo + PIECE]
        if wide.size:
            for i in range(part.size):
                bits[i] = np.uint32(codes[i]) << np.uint32(16)
            for i in range(part.size):
                wide[i] = scratch[i]


@compiled
def _round_bits(bits, rounded):
    """Round float32 bit patterns to their upper half, ties to even.

    The upper half grows by one if the lower half is more than half of its range, or is just that and the upper half is
    odd. NaN becomes 0x7FC0.
    """
    for i in range(bits.size):
        wide = bits[i]
        up = (wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (wide & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        rounded[i] = np.uint16(0x7FC0) if nan else np.uint16(up)


def subtract_dense(x: Array, values: Array) -> None:
    """See `base.Kernels.subtract_dense`."""
    threads.each(lambda lo, hi: _subtract_dense(x[lo:hi], values[lo:hi]), threads.parts(len(x)))


@compiled
def _subtract_dense(x, values):
    """Subtract in place; a value minus itself is 0 only if it is finite."""
    for i in range(x.size):
        value = values[i]
        x[i] = x[i] - value if value - value == 0 else 0


def to_float16(x: Array) -> Array:
    """See `base.Kernels.to_float16`."""
    rounded = np.empty(len(x), np.uint16)
    _round_to_float16(np.ascontiguousarray(x).view(np.uint32), rounded)
    return rounded.view(np.float16)


@compiled
def _round_to_float16(bits, rounded):
    """Round float32 bit patterns to float16, ties to even.

    Below 2^-14 results are denormal: adding 0.5 in float32 rounds there, because the last bit of the sum is worth as
    much as that of a denormal float16. Above, the bits to be cut off are rounded by adding to them.
    """
    half = np.uint32(126 << 23)
    scratch = np.empty(1, np.float32)
    for i in range(bits.size):
        magnitude, sign = bits[i] & np.uint32(0x7FFFFFFF), (bits[i] >> np.uint32(16)) & np.uint32(0x8000)
        capped = min(magnitude, np.uint32(0x477FE000))
        scratch.view(np.uint32)[0] = capped
        scratch[0] += np.float32(0.5)
        tiny = scratch.view(np.uint32)[0] - half
        odd = (capped >> np.uint32(13)) & np.uint32(1)
        normal = (capped + np.uint32(0xFFF) + odd - np.uint32(112 << 23)) >> np.uint32(13)
        code = sign | (tiny if capped < np.uint32(113 << 23) else normal)
        code = sign | np.uint32(0x7C00) if magnitude == np.uint32(0x7F800000) else code
        rounded[i] = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else code
