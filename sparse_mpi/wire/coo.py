"""Coordinates: an int32 index and the unrounded value. A float32 pair is 8 bytes, a float64 pair 12, a half one 6.

A message is a C-contiguous matrix with a pair in each row: the bytes of the index, then of the value. Its length is the
number of pairs, so that a vector encoded once is split among ranks by counts. There is no header.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, index_dtype, namespace
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector, concatenate
from sparse_mpi.wire.base import Packed, SizeBound
from sparse_mpi.wire.codecs import Codec
from sparse_mpi.wire.patterns import column_bytes, decode_rows, encode_rows


@dataclass(frozen=True)
class Coo:
    """Pairs of index and value."""

    lossless: ClassVar[bool] = True
    codec: ClassVar[Codec | None] = None

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """See `Wire.pack`; an item is a pair."""
        return Packed(encode(vector), counts, vector)

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: object) -> SparseVector:
        vector = decode(buffer, size, dtype)
        kernels.check_indices(vector.indices, lengths, regions)
        return vector

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        """See `Wire.pack_sum`. The buffer is flat, of `encode`'s integers; its length marks a dense region."""
        values, (start, stop) = vector.values, region.tolist()
        buffer = encode(vector)
        if buffer.nbytes < (stop - start) * values.itemsize:
            buffer = buffer.reshape(-1)
        else:
            dense = namespace(values).zeros(stop - start, values.dtype)
            dense[vector.indices - start] = values
            buffer = dense.view(buffer.dtype)
        return Packed(buffer, np.array([len(buffer)]), vector)

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any
    ) -> SparseVector:
        # A message is dense if and only if it has the bytes of its dense region, see `pack_sum`.
        xp, units = namespace(buffer), pair_bytes(size, dtype) // buffer.itemsize
        is_dense = lengths * buffer.itemsize == (regions[:, 1] - regions[:, 0]) * np.dtype(dtype).itemsize
        if not is_dense.any():
            return self.unpack(buffer.reshape(-1, units), lengths // units, regions, size, dtype)
        parts, at = [], 0
        for region, length, dense in zip(regions, lengths, is_dense, strict=True):
            message = buffer[at : at + length]
            at += length
            if dense:
                values = xp.ascontiguousarray(message).view(dtype)
                nonzero = xp.flatnonzero(values)
                parts.append(SparseVector((nonzero + region[0]).astype(index_dtype(size)), values[nonzero], size))
            else:
                pairs = message.reshape(-1, units)
                parts.append(self.unpack(pairs, np.array([len(pairs)]), region[None], size, dtype))
        return concatenate(parts)

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: object) -> np.ndarray:
        return entries

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        return SizeBound(pairs=min(entries, width))

    def max_size_of_sum(self, entries: float, width: float) -> SizeBound:
        return SizeBound(pairs=entries) if 2 * entries < width else SizeBound(values=width)

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        """See `Wire.pack_rows`: values, then columns, see `wire.patterns`."""
        message = encode_rows(vector, pattern)
        return Packed(message, np.array([len(message)]), vector)

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: object) -> SparseVector:
        return decode_rows(messages, pattern, size, dtype)

    def row_overhead(self, pattern: Pattern) -> int:
        """See `Wire.row_overhead`: the columns."""
        return column_bytes(pattern)


def pair_bytes(size: int, dtype: Any) -> int:
    """Return the bytes of an (index, value) pair of a vector of length ``size``."""
    return index_dtype(size).itemsize + np.dtype(dtype).itemsize


def encode(vector: SparseVector) -> Array:
    """Return the message: ``(nnz, w)`` int32 (int16 for half precision), C-contiguous, in the vector's library."""
    unit = np.dtype(f"i{gcd(4, vector.values.itemsize)}")
    return kernels.of(vector.values).to_pairs(vector.indices, vector.values, unit)


def decode(buffer: Array, size: int, dtype: Any) -> SparseVector:
    """Invert `encode` for messages of a vector of this ``size`` and ``dtype``."""
    return SparseVector(*kernels.of(buffer).from_pairs(buffer, index_dtype(size), np.dtype(dtype)), size)
