"""Ballots: packed messages of values in four bits, for sums that need only tell which entries are large.

An entry is an index and a code: its sign, and how many quarters of an octave its magnitude lies above the smallest one
of its sender. The code is written as the lowest bits of the index, so that the packed format needs no other section. Of
the 8 levels the last one is for NaN and Inf, which arrive as Inf; finite magnitudes beyond the others count as the
largest of them, about 3.4 times the smallest magnitude. A hash of the index says where inside its level a magnitude is
taken to be, so that votes seldom tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace, to_host
from sparse_mpi.kernels.base import SCALED, index_dtype, magnitude_bits
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.base import Packed, SizeBound
from sparse_mpi.wire.checking import check_indices, check_lengths
from sparse_mpi.wire.codecs import single
from sparse_mpi.wire.packed import BitPacked, entries_of
from sparse_mpi.wire.positions import NoValues

CODES = 16  # a sign and 8 levels
INFINITE = 7  # the level of NaN and Inf
SHIFT = 21  # a level is a quarter of an octave, 2^21 in magnitude bits of float32
LEVEL = 1 << SHIFT
INF_BITS = 0x7F800000
HASH = np.uint32(2246822519)  # odd, and unlike the multiplier by which entries are dealt out to ranks


class _Scaled(NoValues):
    """A codec without codes, but with scales: blocks of entries share one."""

    block: ClassVar[int] = SCALED


class _Coded(BitPacked):
    """The packed format of indices that are `CODES` times as large, of which no more are sent for that."""

    def _number_bytes(self, widths: np.ndarray) -> np.ndarray:
        """Return the bytes of the number of entries in messages of regions of these ``widths`` ``(m,)``."""
        return super()._number_bytes(widths // CODES)


LAYOUT = _Coded(_Scaled())


@dataclass(frozen=True)
class Ballots:
    """The format of ballots, with the members of `Wire` that `split_reduce` needs."""

    lossless: ClassVar[bool] = False

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """See `Wire.pack`. Values must not be zero."""
        values, xp = single(vector.values), namespace(vector.values)
        bits = magnitude_bits(values)
        low = _lowest(bits)
        levels = xp.where(bits < INF_BITS, xp.clip((bits - low) >> SHIFT, 0, INFINITE - 1), INFINITE)
        codes = 2 * levels + (values.view(np.int32) < 0)
        coded = vector.indices.astype(index_dtype(CODES * vector.size)) * CODES + codes.astype(vector.indices.dtype)
        messages = LAYOUT.lay_out(counts, CODES * regions, None)
        scales = xp.full(len(LAYOUT.edges(messages)) - 1, low, np.int32).view(np.float32)
        buffer = kernels.of(values).write_messages(messages, coded, xp.empty(0, np.uint8), scales)
        rounded = _decoded(vector.indices, codes, low).astype(vector.values.dtype)
        return Packed(buffer, messages["end"] - messages["head"], vector._replace(values=rounded))

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack`."""
        xp = namespace(buffer)
        entries = entries_of(buffer, lengths, regions)
        messages = LAYOUT.lay_out(entries, CODES * regions, None)
        check_lengths(lengths, messages["end"] - messages["head"])
        coded, _, scales = kernels.of(buffer).read_messages(messages, buffer, CODES * size)
        check_indices(coded, entries, CODES * regions)
        lows = kernels.of(buffer).from_int8(xp.ones(len(coded), np.int8), scales, LAYOUT.edges(messages))
        indices = (coded // CODES).astype(index_dtype(size))
        values = _decoded(indices, coded & (CODES - 1), lows.view(np.int32))
        return SparseVector(indices, values.astype(dtype), size)

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        """See `Wire.max_size`: packed indices with their codes."""
        return LAYOUT.max_size(entries, CODES * width, messages)


def _decoded(indices: Array, codes: Array, low: Array | int) -> Array:
    """Return the float32 values ``(m,)`` of entries whose senders' lowest levels begin at magnitude bits ``low``."""
    xp = namespace(codes)
    levels = codes.astype(np.uint32) >> np.uint32(1)
    inside = (indices.astype(np.uint32) * HASH) & np.uint32(LEVEL - 1)
    bits = xp.asarray(low).astype(np.uint32) + levels * np.uint32(LEVEL) + inside  # below 2^32
    bits = xp.where(levels == INFINITE, np.uint32(INF_BITS), xp.minimum(bits, np.uint32(INF_BITS - 1)))
    signs = codes.astype(np.uint32) << np.uint32(31)
    return (bits | signs).view(np.float32)


def _lowest(bits: Array) -> int:
    """Return the magnitude bits of the lowest level for values of magnitude ``bits`` ``(m,)``.

    They are those of the smallest value, but for a few values so small that the others could not be told apart.
    """
    if not len(bits):
        return 0
    total, least = to_host(namespace(bits).stack([bits.sum(dtype=np.int64), bits.min().astype(np.int64)])).tolist()
    return min(max(least, total // len(bits) - INFINITE // 2 * LEVEL), INF_BITS)
