"""Bit-packed indices and, if wanted, rounded values: 5.1 bytes a float32 pair at 1 %, 3.1 or 2.1 with rounded values.

A message holds c of the u indices of its region: c in as many bytes as u needs, the codes of the values and their
scales, and then the indices, counted from where the region starts, in whichever is shorter of two forms. In a bitmap
every index of the region is a bit. In Elias and Fano's code the low bits, l = floor(log2(u / c)) of each index, stand
side by side, and the high parts h, which ascend, are one bit each, at position h + i for the i-th entry: c + u / 2^l
bits. Of all u indices nothing is sent.

This needs at most 2 + log2(u / c) bits an index whatever the data, 8.6 at 1 %, where gaps packed in blocks need those
of a block's largest gap: 10 for random indices in blocks of 128, and any number in the worst case. Its length follows
from c and u, so that a rank that knows the count knows what will arrive; and all entries are independent of each other,
so that a device writes and reads them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, like, namespace, to_host
from sparse_mpi.kernels.base import MESSAGE, index_dtype
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.base import Packed
from sparse_mpi.wire.codecs import Codec, Exact


@dataclass(frozen=True)
class BitPacked:
    """Bit-packed indices. The buffer is bytes.

    Args:
        codec: how values are written.
    """

    codec: Codec = Exact()

    @property
    def lossless(self) -> bool:
        """See `Wire.lossless`."""
        return self.codec.lossless

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """See `Wire.pack`."""
        dtype = vector.values.dtype
        messages = self.lay_out(counts, regions, dtype)
        edges = self._edges(messages)
        codes, scales = self.codec.encode(vector, edges)
        buffer = kernels.of(codes).write_messages(messages, vector.indices, codes, scales)
        if not self.lossless:
            vector = vector._replace(values=self.codec.decode(codes, scales, edges, dtype))
        return Packed(buffer, messages["end"] - messages["head"], vector)

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack`."""
        return self._unpack(buffer, _entries(buffer, lengths, regions), regions, size, dtype)

    def _unpack(self, buffer: Array, entries: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        messages = self.lay_out(entries, regions, dtype)
        indices, codes, scales = kernels.of(buffer).read_messages(messages, buffer, size)
        codes = codes.view(self.codec.code_type(dtype))
        return SparseVector(indices, self.codec.decode(codes, scales, self._edges(messages), dtype), size)

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        """See `Wire.pack_sum`."""
        (start, stop), values = region.tolist(), vector.values
        lengths = self.lengths_of(
            np.array([vector.nnz, stop - start]), np.tile(region, (2, 1)), vector.size, values.dtype
        )
        if lengths[0] < lengths[1]:
            return self.pack(vector, np.array([vector.nnz]), region[None])
        xp = namespace(values)
        dense = xp.zeros(stop - start, values.dtype)
        dense[vector.indices - start] = values
        every = SparseVector(xp.arange(start, stop, dtype=index_dtype(vector.size)), dense, vector.size)
        packed = self.pack(every, np.array([stop - start]), region[None])
        return packed._replace(vector=vector if self.lossless else _nonzero(packed.vector))

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any
    ) -> SparseVector:
        """See `Wire.unpack_sums`. A message of all indices of its region is dense."""
        entries = _entries(buffer, lengths, regions)
        vector = self._unpack(buffer, entries, regions, size, dtype)
        dense = entries == regions[:, 1] - regions[:, 0]
        return _nonzero(vector, like(np.repeat(~dense, entries), buffer)) if dense.any() else vector

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> np.ndarray:
        """See `Wire.lengths_of`."""
        messages = self.lay_out(entries, regions, dtype)
        return messages["end"] - messages["head"]

    def overhead(self) -> int:
        """Eight bytes of a count; an index that is alone in 2^31, one byte; a scale, three where values have two."""
        return 8 + 1 + 3 * (self.codec.block > 0)

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        """See `Wire.pack_rows`: a message a tensor, in which columns would need more bits, unless rows are short."""
        return self.pack(vector, *_tensors(pattern))

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack_rows`."""
        entries, regions = _tensors(pattern)
        ranks = len(messages)
        return self._unpack(messages.reshape(-1), np.tile(entries, ranks), np.tile(regions, (ranks, 1)), size, dtype)

    def row_overhead(self, pattern: Pattern) -> int:
        """See `Wire.row_overhead`."""
        entries, regions = _tensors(pattern)
        return int((self.lengths_of(entries, regions, 0, np.float32) - 4 * entries).sum())

    def lay_out(self, entries: np.ndarray, regions: np.ndarray, dtype: Any) -> np.ndarray:
        """Where everything is in messages of so many entries each, one after the other: `MESSAGE`."""
        entries, widths = np.asarray(entries, np.int64), regions[:, 1] - regions[:, 0]
        blocks = -(-entries // self.codec.block) if self.codec.block else 0 * entries
        shifts, spread, spans = _index_forms(entries, widths)
        sections = np.stack(
            [
                _count_bytes(widths) * (entries > 0),
                self.codec.code_type(dtype).itemsize * entries,
                4 * blocks,
                _bytes(shifts * entries),
                _bytes(spans),
            ],
            axis=1,
        )
        ends = np.cumsum(sections).reshape(-1, 5)
        fields = (entries, _before(entries), regions[:, 0], shifts, spread, spans, _before(blocks))
        messages = np.empty(len(entries), MESSAGE)
        for name, field in zip(MESSAGE.names or (), (*fields, *(ends - sections).T, ends[:, -1]), strict=True):
            messages[name] = field
        return messages

    def _edges(self, messages: np.ndarray) -> np.ndarray:
        """Where blocks of values that share a scale begin, and where the last one ends."""
        block, entries = self.codec.block, messages["entries"]
        if not block:
            return np.empty(0, np.int64)
        counts = -(-entries // block)
        numbers = np.arange(counts.sum()) - np.repeat(messages["block"], counts)
        return np.append(np.repeat(messages["first"], counts) + block * numbers, entries.sum())


def _index_forms(entries: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Low bits of an index, whether the high section is spread, and its bits: the shortest form for each message."""
    shifts = np.maximum(_bit_length(widths // np.maximum(entries, 1)) - 1, 0)
    spans = entries + ((widths - 1) >> shifts)
    bitmap = _bytes(widths) < _bytes(shifts * entries) + _bytes(spans)
    sparse = (entries > 0) & (entries < widths)
    spread = sparse & ~bitmap
    return shifts * spread, spread.astype(np.int64), np.where(bitmap, widths, spans) * sparse


def _bit_length(x: np.ndarray) -> np.ndarray:
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def _bytes(bits: np.ndarray) -> np.ndarray:
    return (bits + 7) >> 3


def _before(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def _count_bytes(widths: np.ndarray) -> np.ndarray:
    """Bytes of a number below each of ``widths``: 1, 2, 4 or 8."""
    return np.array([1, 2, 4, 8])[np.searchsorted([1 << 8, 1 << 16, 1 << 32], widths)]


def _entries(buffer: Array, lengths: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """``(m,)``: how many entries messages of ``lengths`` bytes have."""
    lengths = np.asarray(lengths, np.int64)
    digits = np.arange(8) < (_count_bytes(regions[:, 1] - regions[:, 0]) * (lengths > 0))[:, None]
    numbers = np.zeros((len(lengths), 8), np.uint8)
    numbers[digits] = to_host(buffer[like((_before(lengths)[:, None] + np.arange(8))[digits], buffer)])
    return numbers.view("<i8")[:, 0] + (lengths > 0)


def _tensors(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Entries of each tensor, and the region that it is."""
    found = [(tensor.entries, tensor.offset, tensor.offset + tensor.size) for tensor in pattern]
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1:]


def _nonzero(vector: SparseVector, kept: Any = False) -> SparseVector:
    """The entries that are not zero, or ``kept`` whatever they are."""
    chosen = (vector.values != 0) | kept
    return SparseVector(vector.indices[chosen], vector.values[chosen], vector.size)
