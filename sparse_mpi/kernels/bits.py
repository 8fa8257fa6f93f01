"""Packed messages by whole-array functions, which unpack every bit of a message into a byte."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, is_device, like, namespace
from sparse_mpi.kernels.base import FIELDS, MESSAGE, index_dtype
from sparse_mpi.kernels.malformed import MISCOUNTED, MalformedMessage

NUMBER_LIMITS, NUMBER_BYTES = np.array([1 << 8, 1 << 16, 1 << 32]), np.array([1, 2, 4, 8])  # see `count_bytes`


def count_bytes(widths: np.ndarray) -> np.ndarray:
    """Return the bytes, 1, 2, 4 or 8, that hold any number below each of ``widths``."""
    return NUMBER_BYTES[NUMBER_LIMITS.searchsorted(widths)]


def lay_out(
    entries: np.ndarray,
    regions: np.ndarray,
    numbers: np.ndarray,
    codes: np.ndarray,
    blocks: np.ndarray,
    tail: int = 0,
) -> np.ndarray:
    """See `base.Kernels.lay_out`."""
    widths = regions[:, 1] - regions[:, 0]
    shifts, spread, spans = _index_forms(entries, widths)
    # The bytes of the five sections of each message, in the order in which they are written.
    sections = np.empty((len(entries), 5), np.int64)
    sections[:, 0] = numbers * (entries > 0)
    sections[:, 1] = codes
    sections[:, 2] = 4 * blocks
    sections[:, 3] = _bytes(shifts * entries)
    sections[:, 4] = _bytes(spans) + tail * (entries > 0)
    # Sections follow one another without gaps, also from one message to the next.
    ends = sections.cumsum().reshape(-1, 5)
    fields = (entries, before(entries), regions[:, 0], shifts, spread, spans, *map(before, (blocks, codes)))
    words = np.empty((len(entries), FIELDS), np.int64)  # a column is a field of `MESSAGE`
    for column, field in enumerate(fields):
        words[:, column] = field
    words[:, 8:13], words[:, 13] = ends - sections, ends[:, -1]
    return words.view(MESSAGE).reshape(-1)


def _index_forms(entries: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose the shorter form of the indices of each message, of the two that `wire.packed` describes.

    Returns:
        Three arrays ``(m,)`` int64: low bits of an index; 1 if the i-th high bit is moved on by i, which is Elias-Fano,
        else 0; bits of the high section.
    """
    shifts = np.maximum(_bit_length(widths // np.maximum(entries, 1)) - 1, 0)
    spans = entries + ((widths - 1) >> shifts)
    bitmap = _bytes(widths) < _bytes(shifts * entries) + _bytes(spans)
    sparse = (entries > 0) & (entries < widths)
    spread = sparse & ~bitmap
    return shifts * spread, spread.astype(np.int64), np.where(bitmap, widths, spans) * sparse


def _bit_length(x: np.ndarray) -> np.ndarray:
    """Return the bits that each non-negative integer needs as a float64, 0 for 0."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def _bytes(bits: np.ndarray) -> np.ndarray:
    """Return how many bytes hold so many bits."""
    return (bits + 7) >> 3


def before(counts: np.ndarray) -> np.ndarray:
    """Return the exclusive prefix sum."""
    return counts.cumsum() - counts


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    """See `base.Kernels.write_messages`."""
    xp = namespace(indices)
    m = _Entries(messages, indices)
    offsets = indices - m.of("start")
    bits = xp.zeros(8 * int(messages["end"][-1]), np.uint8)
    # High bits: one for each entry, at its high part, and with Elias-Fano as many places on as its number.
    sparse = m.of("span") > 0
    places = 8 * m.of("highs") + (offsets >> m.of("shift")) + m.of("spread") * m.numbers
    bits[places[sparse]] = 1
    # Low bits: the lowest of all entries, then the next of all that have it, and so on.
    for bit, (chosen, at) in enumerate(m.low_bits()):
        bits[at] = (offsets[chosen] >> bit) & 1
    buffer = xp.packbits(bits, bitorder="little")
    # Numbers, codes and scales are whole bytes.
    digits = (messages["entries"] - 1).astype("<i8").view(np.uint8).reshape(-1, 8)
    digits = digits[np.arange(8) < (messages["values"] - messages["head"])[:, None]]
    buffer[like(_span(messages["head"], messages["values"]), buffer)] = like(digits, buffer)
    buffer[like(_span(messages["values"], messages["scales"]), buffer)] = codes.view(np.uint8)
    buffer[like(_span(messages["scales"], messages["lows"]), buffer)] = scales.view(np.uint8)
    return buffer


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    """See `base.Kernels.read_messages`."""
    xp = namespace(buffer)
    m = _Entries(messages, buffer)
    bits = xp.unpackbits(buffer, bitorder="little")
    # High bits: the i-th set bit of a message is that of its i-th entry, and its position gives the high part back.
    offsets, sparse = m.numbers.copy(), xp.flatnonzero(m.of("span") > 0)
    flags = bits[like(_span(8 * messages["highs"], 8 * messages["highs"] + messages["span"]), buffer)]
    miscounted = _miscounted(flags, messages) if not is_device(flags) else np.zeros(0, np.int64)
    if len(miscounted):
        raise MalformedMessage(int(miscounted[0]), len(messages), MISCOUNTED)
    before = like(np.cumsum(messages["span"]) - messages["span"], buffer)[m.owners]
    highs = (xp.flatnonzero(flags) - before[sparse]) - (m.of("spread") * m.numbers)[sparse]
    offsets[sparse] = highs << m.of("shift")[sparse]
    # Low bits, one of all entries at a time.
    for bit, (chosen, at) in enumerate(m.low_bits()):
        offsets[chosen] += bits[at].astype(np.int64) << bit
    indices = (offsets + m.of("start")).astype(index_dtype(size))
    codes = buffer[like(_span(messages["values"], messages["scales"]), buffer)]
    return indices, codes, buffer[like(_span(messages["scales"], messages["lows"]), buffer)].view(np.float32)


def _miscounted(flags: np.ndarray, messages: np.ndarray) -> np.ndarray:
    """Return the numbers of the messages that have other than as many set bits, of ``flags``, as entries."""
    owners, sparse = np.repeat(np.arange(len(messages)), messages["span"]), messages["span"] > 0
    counts = np.bincount(owners[flags != 0], minlength=len(messages))
    return np.flatnonzero(sparse & (counts != messages["entries"]))


def misplaced(indices: Array, counts: np.ndarray, low: int, high: int) -> int:
    """See `malformed.HostKernels.misplaced`."""
    ends = counts.cumsum()
    rises = np.empty(len(indices), bool)
    rises[1:] = indices[1:] > indices[:-1]
    there = np.flatnonzero(counts)
    rises[(ends - counts)[there]] = indices[(ends - counts)[there]] >= low
    rises[ends[there] - 1] &= indices[ends[there] - 1] <= high
    return -1 if rises.all() else int(ends.searchsorted(rises.argmin(), side="right"))


class _Entries:
    """What each entry needs to know of its message, as arrays ``(nnz,)`` of the library of ``x``."""

    def __init__(self, messages: np.ndarray, x: Array) -> None:
        self.messages, self.x = messages, x
        self.owners = like(np.repeat(np.arange(len(messages)), messages["entries"]), x)
        self.numbers = namespace(x).arange(len(self.owners)) - self.of("first")  # within the message

    def of(self, field: str) -> Array:
        """Return for every entry ``(nnz,)`` a field of the `MESSAGE` it is in."""
        return like(np.ascontiguousarray(self.messages[field]), self.x)[self.owners]

    def low_bits(self) -> list[tuple[Array, Array]]:
        """Return for each low bit, from the lowest up, the entries that have it and where in the buffer it stands."""
        xp, shifts = namespace(self.x), self.of("shift")
        places = 8 * self.of("lows") + self.numbers * shifts
        chosen = (xp.flatnonzero(shifts > bit) for bit in range(self.messages["shift"].max()))
        return [(entries, places[entries] + bit) for bit, entries in enumerate(chosen)]


def _span(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return all positions of the ranges from ``starts`` to ``stops``, one range after the other."""
    lengths = stops - starts
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
