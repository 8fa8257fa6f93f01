"""Entries as bytes: their number, values, and packed keys of a few bits each, as in `wire.packed`.

Values are written unchanged, or rounded by a codec. Integers are sent as the shortest type that holds all of a rank's
values; a message's last byte is its size. The number of entries and the keys' region give every section's place. Keys
of a wide range are not packed, and precede the values. The message of no entries is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, to_host
from sparse_mpi.collectives.entries import Entries, parted
from sparse_mpi.kernels.array import count_bytes
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import WIRES, BitPacked
from sparse_mpi.wire.codecs import Codec, Unrounded
from sparse_mpi.wire.packed import Complete, check_lengths, entries_of

SECTIONS = ("head", "values", "scales", "lows", "highs", "end")  # sections of a message, whose places `MESSAGE` tells
WIDE = 1 << 56  # keys of a range from which on they are not packed
NARROW = (1 << 31) - 1  # keys up to which int32 holds them
PACKED = {name: wire for name, wire in WIRES.items() if isinstance(wire, BitPacked)}
ROUNDED = (np.dtype(np.float32), np.dtype(np.float64))
_NO_CODES, _NO_SCALES, _MARK = np.empty(0, np.uint8), np.empty(0, np.float32), np.zeros(1, np.uint8)


@dataclass(frozen=True)
class Format:
    """The format of messages, the same on all ranks.

    Args:
        dtype: type of the values.
        shape: shape of each value, () for numbers.
        span: range of all ranks' keys. Below `WIDE` they are bit-packed as indices (`wire.packed`), else they have 8
            bytes each.
        codec: writes the values, for float32 and float64 only if it rounds.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    span: int
    codec: Codec = Unrounded()

    @property
    def wide(self) -> bool:
        return self.span >= WIDE

    def pack(self, entries: Entries, counts: np.ndarray, regions: np.ndarray) -> tuple[Array, np.ndarray]:
        """Return consecutive messages of ``counts`` ``(m,)`` int64 of the ``entries``, and their lengths.

        ``regions`` ``(m, 2)`` int64 are each message's smallest and largest possible keys.
        """
        short = _shortest(entries.values) if self._whole else entries.values
        values, of_values = self._coded(short, counts)
        if self.wide:
            buffer, ends = _written(entries.keys, counts, values, of_values, self._whole)
            lengths = np.diff(ends, prepend=0)
        else:
            messages = _laid_out(counts, regions, of_values, self._whole)
            buffer = kernels.of(values).write_messages(messages, entries.keys, values, _NO_SCALES)
            ends, lengths = messages["end"], messages["end"] - messages["head"]
        if self._whole:
            buffer[ends[counts > 0] - 1] = short.itemsize
        return buffer, lengths

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray) -> list[Entries]:
        return parted(*self.unpacked(buffer, lengths, regions))

    def unpacked(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, starts: np.ndarray | None = None
    ) -> tuple[Entries, np.ndarray]:
        """Return all messages' entries in one, and each message's number ``(m,)`` int64.

        Messages are consecutive, or at ascending ``starts`` ``(m,)``; then keys are int32 where they fit.
        """
        narrow, starts = starts is not None, lengths.cumsum() - lengths if starts is None else starts
        ends, there = starts + lengths, lengths > 0
        widths = np.full(len(lengths), self.dtype.itemsize)
        if self._whole:
            widths[there] = buffer[ends[there] - 1]
            known = np.isin(widths, [width for width in (1, 2, 4, 8) if width <= self.dtype.itemsize])
            if not known.all():
                number = int(known.argmin())
                raise MalformedMessage(number, len(lengths), f"its numbers have {widths[number]} bytes each")
        if self.wide:
            keys, values, counts, of_values = _read(buffer, starts, lengths, self._whole)
            check_lengths(of_values, self._of_values(counts, widths))
        else:
            counts = entries_of(buffer, lengths, _halfopen(regions), starts)
            of_values = self._of_values(counts, widths)
            messages = _laid_out(counts, regions, of_values, self._whole)
            check_lengths(lengths, messages["end"] - messages["head"])
            away = starts - messages["head"]
            for section in SECTIONS:
                messages[section] += away
            fit = narrow and regions.min() >= -NARROW and regions.max() < NARROW
            keys, values, _ = kernels.of(buffer).read_messages(messages, buffer, NARROW if fit else WIDE)
        kernels.check_indices(keys, counts, regions, beyond=0)
        numbers = self._values(values, of_values, widths[there], counts).reshape(-1, *self.shape)
        return Entries(to_host(keys), to_host(numbers)), counts

    def width(self, values: np.ndarray) -> int:
        return _shortest(values).itemsize if self._whole else self.dtype.itemsize

    def lengths(self, counts: np.ndarray, regions: np.ndarray, widths: np.ndarray) -> np.ndarray:
        of_values = self._of_values(counts, widths)
        if self.wide:
            return of_values + (8 * counts + 8 + self._whole) * (counts > 0)
        messages = _laid_out(counts, regions, of_values, self._whole)
        lengths: np.ndarray = messages["end"] - messages["head"]
        return lengths

    def seen(self, entries: Entries, message: Array, region: np.ndarray) -> Entries:
        """Return ``entries`` as receivers of their ``message`` see them: rounded, if the codec rounds."""
        return entries if self.codec.lossless else self.unpack(message, np.array([len(message)]), region)[0]

    def bytes_each(self, entries: float) -> float:
        bits = 64.0 if self.wide else 2 + log2(max(self.span / max(entries, 1), 1))
        scale = 4 / self.codec.block if self.codec.block else 0.0
        code = (self.codec.code_bytes or self.dtype.itemsize) / self.codec.together
        return (code + scale) * self._numbers + bits / 8

    @property
    def _numbers(self) -> int:
        return prod(self.shape)

    @property
    def _whole(self) -> bool:
        return self.dtype.kind in "iu" and self.dtype.itemsize > 1

    def _coded(self, values: np.ndarray, counts: np.ndarray) -> tuple[Array, np.ndarray]:
        numbers = np.ascontiguousarray(values).reshape(-1)
        if self.codec.lossless:
            return numbers.view(np.uint8), self._numbers * values.itemsize * counts
        places = np.arange(len(numbers))
        packed = Complete(self.codec).pack(SparseVector(places, numbers, len(numbers)), *self._sections(counts))
        return packed.buffer, packed.lengths

    def _of_values(self, counts: np.ndarray, widths: np.ndarray) -> np.ndarray:
        if self.codec.lossless:
            return widths * self._numbers * counts
        numbers, places = self._sections(counts)
        return Complete(self.codec).lengths_of(numbers, places, int(numbers.sum()), self.dtype)

    def _values(self, sections: Array, lengths: np.ndarray, widths: np.ndarray, counts: np.ndarray) -> Array:
        if not self.codec.lossless:
            numbers, places = self._sections(counts)
            return Complete(self.codec).unpack(sections, lengths, places, int(numbers.sum()), self.dtype).values
        if not self._whole:
            return sections.view(self.dtype)
        kinds = [np.dtype(f"{self.dtype.kind}{width}") for width in set(widths.tolist())]
        if len(kinds) == 1:  # all in one
            return sections.view(kinds[0]).astype(self.dtype, copy=False)
        ends = lengths[lengths > 0].cumsum().tolist()
        each = zip([0, *ends], ends, widths.tolist(), strict=False)
        parts = [sections[start:end].view(f"{self.dtype.kind}{width}") for start, end, width in each]
        return np.concatenate([_NO_CODES.view(self.dtype), *parts])

    def _sections(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = self._numbers * counts
        ends = np.cumsum(numbers)
        return numbers, np.stack([ends - numbers, ends], axis=1)


def _laid_out(counts: np.ndarray, regions: np.ndarray, of_values: np.ndarray, marked: bool) -> np.ndarray:
    halfopen, none = _halfopen(regions), np.zeros_like(counts)
    numbers = count_bytes(halfopen[:, 1] - halfopen[:, 0])
    return kernels.host().lay_out(counts, halfopen, numbers, of_values, none, int(marked))


def _written(
    keys: np.ndarray, counts: np.ndarray, values: Array, of_values: np.ndarray, marked: bool
) -> tuple[Array, np.ndarray]:
    keys, parts, key, value = np.ascontiguousarray(keys), [_NO_CODES], 0, 0
    for count, length in zip(counts.tolist(), of_values.tolist(), strict=True):
        if count:
            head = np.array([count]), keys[key : key + count]
            parts += [*(part.view(np.uint8) for part in head), values[value : value + length], _MARK[: int(marked)]]
            key, value = key + count, value + length
    return np.concatenate(parts), (of_values + (8 * counts + 8 + marked) * (counts > 0)).cumsum()


def _read(
    buffer: Array, starts: np.ndarray, lengths: np.ndarray, marked: bool
) -> tuple[Array, Array, np.ndarray, np.ndarray]:
    keys, values, counts = [_NO_CODES], [_NO_CODES], np.zeros(len(lengths), np.int64)
    for message, (head, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length:
            start, end = head + 8, head + length
            count = int(buffer[start - 8 : start].view(np.int64)[0]) if length >= 8 + marked else 0
            if not 0 < count <= (length - 8 - marked) // 8:
                raise MalformedMessage(message, len(lengths), f"it tells of {count} entries in {length} bytes")
            counts[message] = count
            keys.append(buffer[start : start + 8 * count])
            values.append(buffer[start + 8 * count : end - marked])
    of_values = lengths - (8 * counts + 8 + marked) * (lengths > 0)
    return np.concatenate(keys).view(np.int64), np.concatenate(values), counts, of_values


def _shortest(values: np.ndarray) -> np.ndarray:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for width in (1, 2, 4):
        kind = np.dtype(f"{values.dtype.kind}{width}")
        if width < values.itemsize and np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _halfopen(regions: np.ndarray) -> np.ndarray:
    """Return half-open regions. Stops may wrap around: only differences are used."""
    return regions + np.array([0, 1])


def codec_of(wire: str | BitPacked | None, op: np.ufunc, dtype: np.dtype) -> Codec:
    names = ", ".join(PACKED)
    if isinstance(wire, str) and wire not in PACKED:
        raise ValueError(f"wire must be None or one of {names}, got {wire!r}; keys are always packed")
    made = PACKED[wire] if isinstance(wire, str) else wire
    if made is None:
        return Unrounded()
    if not isinstance(made, BitPacked):
        raise TypeError(f"wire must be None, one of {names}, or a BitPacked, got {wire!r}")
    if not made.lossless and dtype not in ROUNDED:
        raise TypeError(f"wire must be None or 'packed' for values of {dtype}, got {wire!r}; float32 and float64 only")
    if made.codec.block and op is np.multiply:
        raise ValueError(
            f"wire must be one whose errors are relative for op='prod', got {wire!r}, which may round a small factor "
            "to zero; take 'packed+bf16'"
        )
    return made.codec
