"""Entries as bytes: packed keys, which take a few bits each, and then the values.

Values are written as they are in memory, or rounded by a codec. Integers are sent as the shortest type that holds all
of a rank's values, and the last byte of a message says how many bytes that has. A message begins with its number of
entries, so that its receiver needs to know no more than the region of its keys. The message of no entries is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.keyed.entries import Entries, none_of
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.codecs import Codec, Unrounded
from sparse_mpi.wire.packed import BitPacked, entries_of
from sparse_mpi.wire.positions import Complete, NoValues

LAYOUT = BitPacked(NoValues())
WIDE = 1 << 56  # keys of a range from which on they are not packed
_NO_CODES, _NO_SCALES = np.empty(0, np.uint8), np.empty(0, np.float32)


@dataclass(frozen=True)
class Format:
    """The format of messages, the same on all ranks.

    Args:
        dtype: of the values.
        shape: of each value, () for numbers.
        span: of the keys of all ranks. Below `WIDE` they are bit-packed as indices are (`wire.packed`), else they take
            8 bytes each.
        codec: writes the values, for float32 and float64 only if it rounds.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    span: int
    codec: Codec = Unrounded()

    @property
    def wide(self) -> bool:
        """Tell if keys are not packed."""
        return self.span >= WIDE

    def pack(self, entries: Entries, counts: np.ndarray, regions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut ``entries`` into m messages of ``counts`` ``(m,)`` int64 entries.

        Args:
            entries: in the order of the messages.
            counts: of each message.
            regions: ``(m, 2)`` int64, the smallest and the largest key that each message may have.

        Returns:
            The messages, bytes, one after the other, and their lengths ``(m,)`` int64.
        """
        keys, ends = self._packed_keys(entries.keys, counts, regions)
        short = _shortest(entries.values) if self._whole else entries.values
        values, of_values = self._coded(short, counts)
        cuts = np.cumsum(of_values) - of_values
        mark = np.array([short.itemsize] * self._whole, np.uint8)
        parts = []
        for start, end, at, length in zip(ends[:-1], ends[1:], cuts, of_values, strict=True):
            parts += [keys[start:end], values[at : at + length], mark if length else mark[:0]]
        return np.concatenate(parts), np.diff(ends) + of_values + len(mark) * (counts > 0)

    def unpack(self, buffer: np.ndarray, lengths: np.ndarray, regions: np.ndarray) -> list[Entries]:
        """Return the entries of each of the messages of these ``lengths`` that stand in ``buffer``."""
        found = [none_of(self.dtype, self.shape)] * len(lengths)
        full = np.flatnonzero(lengths)
        if len(full) == 0:
            return found
        starts, lengths, regions = (np.cumsum(lengths) - lengths)[full], lengths[full], regions[full]
        # The keys: how many there are tells how long they are.
        counts = self._counts(buffer, starts, lengths, regions)
        messages = None if self.wide else LAYOUT.lay_out(counts, _halfopen(regions), None)
        of_keys = 8 * (counts + 1) if messages is None else messages["end"] - messages["head"]
        sections = _slices(buffer, starts, of_keys)
        if messages is None:
            keys = np.delete(sections.view(np.int64), np.cumsum(counts + 1) - counts - 1)
        else:
            keys = kernels.of(sections).read_messages(messages, sections, WIDE)[0]
        # The values, which fill the rest.
        values = self._values(buffer, starts + of_keys, starts + lengths, counts).reshape(-1, *self.shape)
        ends = np.cumsum(counts).tolist()
        for message, end, count in zip(full.tolist(), ends, counts.tolist(), strict=True):
            found[message] = Entries(keys[end - count : end], values[end - count : end])
        return found

    def seen(self, entries: Entries, message: np.ndarray, region: np.ndarray) -> Entries:
        """Return ``entries`` as the receivers of their ``message`` see them: rounded, if the codec rounds."""
        return entries if self.codec.lossless else self.unpack(message, np.array([len(message)]), region)[0]

    def bytes_each(self, entries: float) -> float:
        """Return about how many bytes an entry takes in messages of so many entries of all the keys there are."""
        bits = 64.0 if self.wide else 2 + log2(max(self.span / max(entries, 1), 1))
        scale = 4 / self.codec.block if self.codec.block else 0.0
        code = self.codec.code_type(self.dtype).itemsize / self.codec.together
        return (code + scale) * self._numbers + bits / 8

    @property
    def _numbers(self) -> int:
        """Return the numbers of a value."""
        return prod(self.shape)

    @property
    def _whole(self) -> bool:
        """Tell if values are sent as the shortest integers that hold them."""
        return self.dtype.kind in "iu" and self.dtype.itemsize > 1

    def _coded(self, values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sections of values of all messages, and their lengths ``(m,)``."""
        numbers = np.ascontiguousarray(values).reshape(-1)
        if self.codec.lossless:
            return numbers.view(np.uint8), self._numbers * values.itemsize * counts
        places = np.arange(len(numbers))
        packed = Complete(self.codec).pack(SparseVector(places, numbers, len(numbers)), *self._sections(counts))
        return packed.buffer, packed.lengths

    def _values(self, buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the numbers of all messages, whose sections of values begin and end there."""
        if not self.codec.lossless:
            sections, (numbers, places) = _slices(buffer, starts, ends - starts), self._sections(counts)
            return Complete(self.codec).unpack(sections, ends - starts, places, int(numbers.sum()), self.dtype).values
        if not self._whole:
            return _slices(buffer, starts, ends - starts).view(self.dtype)
        widths = buffer[ends - 1].tolist()
        each = zip(starts.tolist(), (ends - 1).tolist(), widths, strict=True)
        parts = [buffer[start:end].copy().view(f"{self.dtype.kind}{width}") for start, end, width in each]
        return np.concatenate([part.astype(self.dtype, copy=False) for part in parts])

    def _sections(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many numbers each message has ``(m,)``, and first and end ``(m, 2)`` of these among all."""
        numbers = self._numbers * counts
        ends = np.cumsum(numbers)
        return numbers, np.stack([ends - numbers, ends], axis=1)

    def _packed_keys(self, keys: np.ndarray, counts: np.ndarray, regions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sections of keys of all messages, and where they begin and end ``(m + 1,)``."""
        if self.wide:
            full = np.flatnonzero(counts)
            headed = np.insert(keys, (np.cumsum(counts) - counts)[full], counts[full])
            return headed.view(np.uint8), np.append(0, np.cumsum(8 * (counts + (counts > 0))))
        messages = LAYOUT.lay_out(counts, _halfopen(regions), None)
        buffer = kernels.of(keys).write_messages(messages, keys, _NO_CODES, _NO_SCALES)
        return buffer, np.append(messages["head"], messages["end"][-1:])

    def _counts(self, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, regions: np.ndarray) -> np.ndarray:
        """Return the entries of each message, none of which is empty."""
        if self.wide:
            return _slices(buffer, starts, np.full(len(starts), 8)).view(np.int64)
        return entries_of(buffer[starts[0] :], lengths, _halfopen(regions))


def _shortest(values: np.ndarray) -> np.ndarray:
    """Return whole numbers as the shortest type of their kind that holds all of them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for width in (1, 2, 4):
        kind = np.dtype(f"{values.dtype.kind}{width}")
        if width < values.itemsize and np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _halfopen(regions: np.ndarray) -> np.ndarray:
    """Return regions with the key behind their last one, which may wrap around: only differences are looked at."""
    return regions + np.array([0, 1])


def _slices(buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the bytes of some slices, one after the other."""
    return np.concatenate([buffer[at : at + n] for at, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
