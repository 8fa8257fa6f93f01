"""Bit-packed indices and optionally rounded values: 5.1 bytes a float32 pair at 1 %, 3.1 to 1.4 with rounded values.

A message holds c entries of a region of u indices. It has up to five sections, each of whole bytes:

1. c - 1, little endian, in 1, 2, 4 or 8 bytes, enough for any number below u;
2. the codes of the values, perhaps several in a byte;
3. the scales of the values, if the codec has scales;
4. the low bits of the indices, and
5. the high bits of the indices.

Indices count from the region's start, in the shorter of two forms:

- *Elias-Fano.* Each index is cut in two. Its l = floor(log2(u / c)) low bits are stored side by side. The high parts h
  = index >> l ascend, so each needs one bit: the i-th entry sets the bit at position h + i. Positions are distinct, and
  the reader subtracts i. The high section has c + u / 2^l bits.
- *Bitmap.* Every index of the region is one bit of the high section; there are no low bits.

With all u indices of the region, neither section is sent. The message of no entries is empty.

Elias-Fano needs at most 2 + log2(u / c) bits an index, 8.6 at 1 %. A message's length follows from c and u. Entries are
independent, so a GPU writes and reads them in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, log2
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, index_dtype, is_device, like, namespace, to_host
from sparse_mpi.checks import check_instance
from sparse_mpi.kernels.array import count_bytes
from sparse_mpi.kernels.base import BALLOTS, SCALED, MalformedMessage
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector, take
from sparse_mpi.wire.base import Packed, SizeBound, Wire
from sparse_mpi.wire.codecs import Codec, Int8, Unrounded, as_type, single

# Where to look around the number of entries that would fill a message: the scale of a block that is not full, and parts
# of bytes, take up to 52 bits, of 9 an entry
NEAR = np.arange(-20, 9)


@dataclass(frozen=True)
class BitPacked:
    """Bit-packed indices. The buffer is bytes.

    Args:
        codec: writes the values.
    """

    counted: ClassVar[bool] = True  # the number of entries is sent
    scale_bytes: ClassVar[int] = 4  # 2 where bfloat16 holds the scales
    codec: Codec = Unrounded()

    def __post_init__(self) -> None:
        check_instance("codec", self.codec, Codec)

    @property
    def lossless(self) -> bool:
        return self.codec.lossless

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        dtype = vector.values.dtype
        messages, edges, lengths = self.lay_out(counts, regions, dtype)
        codes, scales = self.codec.encode(vector, edges)
        buffer = kernels.of(codes).write_messages(messages, vector.indices, codes, scales)
        if not self.codec.lossless:
            vector = SparseVector(vector.indices, self.codec.decode(codes, scales, edges, dtype), vector.size)
        return Packed(buffer, lengths, vector)

    def unpack(
        self,
        buffer: Array,
        lengths: np.ndarray,
        regions: np.ndarray,
        size: int,
        dtype: object,
        entries: np.ndarray | None = None,
    ) -> SparseVector:
        """See `Wire.unpack`; the numbers ``entries`` ``(m,)``, if given, are not read from the messages."""
        if entries is None:
            entries = self.entries(buffer, lengths, regions, dtype)
        messages, edges, expected = self.lay_out(entries, regions, dtype)
        check_lengths(lengths, expected)
        indices, codes, scales = kernels.of(buffer).read_messages(messages, buffer, size)
        kernels.check_indices(indices, entries, regions)
        return SparseVector(indices, self.codec.decode(codes, scales, edges, dtype), size)

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        (start, stop), values = region.tolist(), vector.values
        # Compare the message of these entries with that of all indices of the region, and send the shorter one.
        lengths = self.lengths_of(
            np.array([len(vector.indices), stop - start]), np.tile(region, (2, 1)), vector.size, values.dtype
        )
        if lengths[0] < lengths[1]:
            return self.pack(vector, np.array([len(vector.indices)]), region[None])
        xp = namespace(values)
        dense = xp.zeros(stop - start, values.dtype)
        dense[vector.indices - start] = values
        every = SparseVector(xp.arange(start, stop, dtype=index_dtype(vector.size)), dense, vector.size)
        packed = self.pack(every, np.array([stop - start]), region[None])
        return packed._replace(vector=vector if self.codec.lossless else _nonzero(packed.vector))

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: object
    ) -> SparseVector:
        """See `Wire.unpack_sums`. A message is dense if it has all indices of its region."""
        entries = self.entries(buffer, lengths, regions, dtype)
        vector = self.unpack(buffer, lengths, regions, size, dtype, entries)
        dense = entries == regions[:, 1] - regions[:, 0]
        return _nonzero(vector, like(np.repeat(~dense, entries), buffer)) if dense.any() else vector

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: object) -> np.ndarray:
        return self.records(entries, regions, dtype)[1]

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        # An index takes at most 2 + log2(u / c) bits, and a region no more bits than elements. That is concave in c and
        # u, and so most where all messages are alike. Two bytes of each message are not full
        entries = min(entries, width)
        bits = min(entries * (2 + log2(width / entries)), width) if entries else 0.0
        indices = SizeBound(extra=bits / 8 + messages * (2 + self._head(width)))
        return self._max_size_of_codes(entries, messages) + indices

    def max_size_of_sum(self, entries: float, width: float) -> SizeBound:
        dense = self._max_size_of_codes(width, 1) + SizeBound(extra=self._head(width))
        return min(self.max_size(entries, width), dense, key=SizeBound.bytes)

    def _max_size_of_codes(self, entries: float, messages: int) -> SizeBound:
        scales = self.scale_bytes * (entries / self.codec.block + messages) if self.codec.block else 0.0
        if self.codec.code_bytes is None:
            return SizeBound(values=entries, extra=scales)
        together = self.codec.together  # codes in an item; a message may lack the last ones
        return SizeBound(extra=self.codec.code_bytes * (entries + messages * (together - 1)) / together + scales)

    def _head(self, width: float) -> int:
        return int(count_bytes(np.array([ceil(width)]))[0]) if self.counted else 0

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        # Each tensor is a message of its own: columns, as in `wire.patterns`, take more bits, unless rows are short
        return self.pack(vector, *_tensors(pattern))

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: object) -> SparseVector:
        entries, regions = _tensors(pattern)
        ranks = len(messages)
        lengths = np.tile(self.lengths_of(entries, regions, size, dtype), ranks)
        entries, regions = np.tile(entries, ranks), np.tile(regions, (ranks, 1))
        return self.unpack(messages.reshape(-1), lengths, regions, size, dtype, entries)

    def row_overhead(self, pattern: Pattern) -> int:
        entries, regions = _tensors(pattern)
        return int((self.lengths_of(entries, regions, 0, np.float32) - 4 * entries).sum())

    def entries(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, dtype: Any) -> np.ndarray:
        """Return each message's number of entries ``(m,)`` int64; see `Wire.unpack` for the arguments."""
        if not self.counted:
            return regions[:, 1] - regions[:, 0]
        # The host waits for a device only where lengths do not tell it
        told = self.entries_by_length(lengths, regions, dtype) if is_device(buffer) else None
        return entries_of(buffer, lengths, regions) if told is None else told

    def entries_by_length(self, lengths: np.ndarray, regions: np.ndarray, dtype: Any) -> np.ndarray | None:
        """Return the entries ``(m,)`` of messages of ``lengths``; None if some length fits several numbers."""
        long, spans = np.asarray(lengths, np.int64), np.asarray(regions, np.int64)
        return _entries_by_length(self._form, np.dtype(dtype).itemsize, long.tobytes(), spans.tobytes())

    def lay_out(
        self, entries: np.ndarray, regions: np.ndarray, dtype: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the starts of all messages' sections, and the blocks of values that share a scale.

        Returns:
            A table ``(m,)`` of `MESSAGE`; the edges ``(b + 1,)`` of blocks, new in every message, none without scales;
            and the lengths ``(m,)`` that are sent. All are read-only.
        """
        counts, spans = np.asarray(entries, np.int64), np.asarray(regions, np.int64)
        return _laid_out(self._form, np.dtype(dtype).itemsize, counts.tobytes(), spans.tobytes())

    def records(self, entries: np.ndarray, regions: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the table and the lengths of `lay_out`, read-only too."""
        counts, spans = np.asarray(entries, np.int64), np.asarray(regions, np.int64)
        return _records(self._form, np.dtype(dtype).itemsize, counts.tobytes(), spans.tobytes())

    @cached_property
    def _form(self) -> _Form:
        codec = self.codec
        return _Form(self.counted, self.scale_bytes, codec.together, codec.block, codec.code_bytes)


class _Form(NamedTuple):
    counted: bool
    scale_bytes: int
    together: int
    block: int
    code: int | None  # bytes of an item of codes; None: of a value


@lru_cache(maxsize=64)
def _records(form: _Form, value: int, entries: bytes, regions: bytes) -> tuple[np.ndarray, np.ndarray]:
    counts, spans = np.frombuffer(entries, np.int64), np.frombuffer(regions, np.int64).reshape(-1, 2)
    passes, code = kernels.host(), value if form.code is None else form.code
    numbers, codes, blocks = passes.sizes(counts, spans, form.counted, form.together, code, form.block)
    messages = passes.lay_out(counts, spans, numbers, codes, blocks, scale_bytes=form.scale_bytes)
    return messages, messages["end"] - messages["head"]


@lru_cache(maxsize=64)
def _laid_out(form: _Form, value: int, entries: bytes, regions: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    messages, lengths = _records(form, value, entries, regions)
    edges = kernels.host().edges(messages, form.block) if form.block else np.empty(0, np.int64)
    return messages, edges, lengths


@lru_cache(maxsize=8)
def _entries_by_length(form: _Form, value: int, lengths: bytes, regions: bytes) -> np.ndarray | None:
    """Return `BitPacked.entries_by_length`.

    Longer messages have more entries, up to rounding to bytes; those with all indices lack index sections.
    """
    if form.together > 1:  # too few bits an entry: several numbers fit
        return None
    long, spans = np.frombuffer(lengths, np.int64), np.frombuffer(regions, np.int64).reshape(-1, 2)
    widths = spans[:, 1] - spans[:, 0]
    code = value if form.code is None else form.code
    each = 8 * code + (8 * form.scale_bytes / form.block if form.block else 0)
    # A guess: bits an entry depend on the number of entries.
    bits = 8.0 * (long - count_bytes(widths))
    guess = bits / (each + 2)
    for _ in range(3):
        shift = np.floor(np.log2(np.maximum(widths / np.maximum(guess, 1), 1)))
        guess = (bits - widths / 2.0**shift) / (each + shift + 1)
    if each:  # more of them, if that is where a bitmap is shorter
        guess = np.maximum(guess, (bits - widths) / each)
    near = np.column_stack([guess.astype(np.int64)[:, None] + NEAR, widths])
    near[:, :-1][(near[:, :-1] < 1) | (near[:, :-1] >= widths[:, None])] = 0
    found = _records(form, value, near.tobytes(), np.repeat(spans, len(NEAR) + 1, axis=0).tobytes())[1].reshape(
        near.shape
    )
    fits = (found == long[:, None]) & (near > 0)
    if ((long > 0) != fits.sum(axis=1)).any():
        return None
    entries: np.ndarray = (near * fits).sum(axis=1)
    return entries


def entries_of(buffer: Array, lengths: np.ndarray, regions: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """Read each message's number of entries ``(m,)``, at ``starts`` or one by one.

    Raise `MalformedMessage` for a message without room for its number, or with more entries than its region.
    """
    lengths = np.asarray(lengths, np.int64)
    starts = lengths.cumsum() - lengths if starts is None else starts
    if is_device(buffer):  # bring only possible numbers
        heads = np.minimum(starts[:, None] + np.arange(8), len(buffer) - 1).ravel()
        buffer, starts = to_host(buffer[like(heads, buffer)]), 8 * np.arange(len(lengths))
    entries, bad = kernels.host().numbers(buffer, lengths, regions, starts)
    if bad >= 0:
        width = regions[bad : bad + 1, 1] - regions[bad : bad + 1, 0]
        least, problem = int(count_bytes(width)[0]), f"it tells of {entries[bad]} entries of {width[0]}"
        if lengths[bad] < least:
            problem = f"it is {lengths[bad]} long where its entries take {least}"
        raise MalformedMessage(bad, len(entries), problem)
    return entries


def check_lengths(lengths: np.ndarray, expected: np.ndarray) -> None:
    if lengths is not expected and lengths.tolist() != expected.tolist():
        number = int(np.flatnonzero(lengths != expected)[0])
        problem = f"it is {lengths[number]} long where its entries take {expected[number]}"
        raise MalformedMessage(number, len(lengths), problem)


def _tensors(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    found = [(tensor.entries, tensor.offset, tensor.offset + tensor.size) for tensor in pattern]
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1:]


def _nonzero(vector: SparseVector, kept: object = False) -> SparseVector:
    return take(vector, (vector.values != 0) | kept)


class _NoValues(Unrounded):
    code_bytes: ClassVar[int | None] = 0


class KnownCounts(BitPacked):
    """The packed format without numbers of entries: a message has every index, or its reader knows the number."""

    counted: ClassVar[bool] = False


@dataclass(frozen=True)
class Complete(KnownCounts):
    """The format of messages with an entry for every index of their region: only values are sent."""

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        codec, (indices, values, size) = self.codec, vector
        if not isinstance(codec, Int8) or not is_device(values):
            return super().pack(vector, counts, regions)
        # A device has one kernel for all of it
        messages, lengths = self.records(counts, regions, None)
        buffer, back = kernels.device().write_int8(messages, single(values), codec.short)
        return Packed(buffer, lengths, SparseVector(indices, as_type(back, values.dtype), size))

    def unpack(
        self,
        buffer: Array,
        lengths: np.ndarray,
        regions: np.ndarray,
        size: int,
        dtype: object,
        entries: np.ndarray | None = None,
    ) -> SparseVector:
        if not isinstance(self.codec, Int8) or not is_device(buffer):
            return super().unpack(buffer, lengths, regions, size, dtype, entries)
        messages, expected = self.records(regions[:, 1] - regions[:, 0], regions, None)
        check_lengths(lengths, expected)
        indices, values = kernels.device().read_int8(messages, buffer, size)
        return SparseVector(indices, as_type(values, dtype), size)

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        return self._max_size_of_codes(entries, messages)


@dataclass(frozen=True)
class ShortInt8(Int8):
    """`Int8` with scales rounded to bfloat16, for short messages; that error is owed too."""

    short: ClassVar[bool] = True


class ShortComplete(Complete):
    """The format of `Complete` messages with scales of two bytes."""

    scale_bytes: ClassVar[int] = 2


@dataclass(frozen=True)
class Paired:
    """Two numbers an entry: a complete vector's even indices in one format, odd ones in another.

    A message is the first format's, then the second's. Regions begin and end between entries.

    Args:
        formats: formats of complete messages, with buffers of bytes.
    """

    formats: tuple[Wire, Wire]

    @property
    def lossless(self) -> bool:
        return all(wire.lossless for wire in self.formats)

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        indices, size = vector.indices[::2] // 2, vector.size // 2
        counts, regions = np.asarray(counts) // 2, regions // 2
        halves = [
            wire.pack(SparseVector(indices, vector.values[place::2], size), counts, regions)
            for place, wire in enumerate(self.formats)
        ]
        messages = [cut_messages(half.buffer, half.lengths) for half in halves]
        buffer = namespace(vector.values).concatenate([part for pair in zip(*messages, strict=True) for part in pair])
        values = paired(*(half.vector.values for half in halves))
        return Packed(buffer, halves[0].lengths + halves[1].lengths, vector._replace(values=values))

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: object) -> SparseVector:
        regions, half, join = regions // 2, size // 2, namespace(buffer).concatenate
        entries = regions[:, 1] - regions[:, 0]
        both = np.stack([wire.lengths_of(entries, regions, half, dtype) for wire in self.formats], axis=1)
        check_lengths(lengths, both.sum(axis=1))
        messages = cut_messages(buffer, both.ravel())
        halves = [
            wire.unpack(join(messages[place::2]), both[:, place], regions, half, dtype)
            for place, wire in enumerate(self.formats)
        ]
        indices = paired(2 * halves[0].indices, 2 * halves[0].indices + 1)
        return SparseVector(indices, paired(*(half.values for half in halves)), size)

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: object) -> np.ndarray:
        first, second = (wire.lengths_of(entries // 2, regions // 2, size // 2, dtype) for wire in self.formats)
        return first + second


def cut_messages(buffer: Array, lengths: np.ndarray) -> list[Array]:
    ends = np.cumsum(lengths)
    return [buffer[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def paired(even: Array, odd: Array) -> Array:
    """Return an array ``(2m,)`` with elements of two ``(m,)`` in turns."""
    return namespace(even).stack([even, odd], axis=1).ravel()


POSITIONS = KnownCounts(_NoValues())


def pack_positions(indices: Array, counts: np.ndarray, regions: np.ndarray) -> Array:
    """Cut ``indices``, ascending in each region, into messages of ``counts`` ``(m,)``, 8.6 bits an index at 1 %.

    ``regions`` ``(m, 2)`` int64 are each message's start and stop; `positions_lengths` are their lengths.
    """
    xp, messages = namespace(indices), POSITIONS.records(counts, regions, None)[0]
    return kernels.of(indices).write_messages(messages, indices, xp.empty(0, np.uint8), xp.empty(0, np.float32))


def unpack_positions(buffer: Array, counts: np.ndarray, regions: np.ndarray, size: int) -> Array:
    """Invert `pack_positions`, for indices of a vector of length ``size``."""
    indices = kernels.of(buffer).read_messages(POSITIONS.records(counts, regions, None)[0], buffer, size)[0]
    kernels.check_indices(indices, counts, regions)
    return indices


def positions_lengths(counts: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Return the bytes ``(m,)`` int64 of messages of ``counts`` ``(m,)`` indices in ``regions`` ``(m, 2)``."""
    return POSITIONS.lengths_of(counts, regions, 0, None)


# Ballots: packed messages of values in four bits, for sums that need only tell which entries are large.
#
# An entry is an index and a code: its sign, and how many quarters of an octave its magnitude lies above the smallest
# of its sender that is not 0. The code is written as the lowest bits of the index, so that the packed format needs no
# other section but the smallest magnitude, in two bytes. The last of 8 levels has no sign: one of its codes is for NaN
# and Inf, which arrive as +Inf, the other for 0. Finite magnitudes beyond the others count as the largest of them,
# about 3.4 times the smallest magnitude. A hash of the index says where inside its level a magnitude is taken to be, so
# that votes seldom tie, and its sign in one bit of that, so that votes of the same level and opposite signs do not add
# up to 0, which would be as none.


class _Same(_NoValues):
    """A codec for senders with a single value: only scales are sent."""

    block: ClassVar[int] = SCALED


class _Coded(KnownCounts):
    """The packed format of indices times `BALLOTS` plus a code."""

    scale_bytes: ClassVar[int] = 2


CODED = _Coded(_Same())


def pack_ballots(vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
    """Write votes as messages of ``counts`` ``(m,)``; see `Wire.pack`. `ballots_lengths` are their lengths."""
    passes, (indices, values, size) = kernels.of(vector.values), vector
    coded, lows, rounded = passes.to_ballots(single(values), indices, size)
    messages, lengths = CODED.records(counts, BALLOTS * regions, None)
    buffer = passes.write_messages(messages, coded, lows[:0].view(np.uint8), lows)
    return Packed(buffer, lengths, SparseVector(indices, rounded.astype(values.dtype, copy=False), size))


def unpack_ballots(buffer: Array, counts: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
    """Invert `pack_ballots`, for indices of a vector of length ``size`` and values of ``dtype``."""
    passes, coded_regions = kernels.of(buffer), BALLOTS * regions
    messages = CODED.records(counts, coded_regions, None)[0]
    coded, _, lows = passes.read_messages(messages, buffer, BALLOTS * size)
    kernels.check_indices(coded, counts, coded_regions)
    indices, values = passes.from_ballots(messages, coded, lows, size)
    return SparseVector(indices, values.astype(dtype, copy=False), size)


def ballots_lengths(counts: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Return the bytes ``(m,)`` int64 of messages of ``counts`` ``(m,)`` votes in ``regions`` ``(m, 2)``."""
    return CODED.lengths_of(counts, BALLOTS * regions, 0, None)
