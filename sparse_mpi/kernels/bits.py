"""Packed messages from whole-array functions: every bit of the indices is a byte on the way."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.kernels.base import index_dtype


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    """See `base.Kernels.write_messages`."""
    xp = namespace(indices)
    m = _Entries(messages, indices)
    offsets = indices - m.of("start")
    bits = xp.zeros(8 * int(messages["end"][-1]), np.uint8)
    sparse = m.of("span") > 0
    places = 8 * m.of("highs") + (offsets >> m.of("shift")) + m.of("spread") * m.numbers
    bits[places[sparse]] = 1
    for bit, (chosen, at) in enumerate(m.low_bits()):
        bits[at] = (offsets[chosen] >> bit) & 1
    buffer = xp.packbits(bits, bitorder="little")
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
    offsets, sparse = m.numbers.copy(), xp.flatnonzero(m.of("span") > 0)
    flags = bits[like(_span(8 * messages["highs"], 8 * messages["highs"] + messages["span"]), buffer)]
    before = like(np.cumsum(messages["span"]) - messages["span"], buffer)[m.owners]
    highs = (xp.flatnonzero(flags) - before[sparse]) - (m.of("spread") * m.numbers)[sparse]
    offsets[sparse] = highs << m.of("shift")[sparse]
    for bit, (chosen, at) in enumerate(m.low_bits()):
        offsets[chosen] += bits[at].astype(np.int64) << bit
    indices = (offsets + m.of("start")).astype(index_dtype(size))
    codes = buffer[like(_span(messages["values"], messages["scales"]), buffer)]
    return indices, codes, buffer[like(_span(messages["scales"], messages["lows"]), buffer)].view(np.float32)


class _Entries:
    """What each of the entries of all messages must know, of the library of ``x``."""

    def __init__(self, messages: np.ndarray, x: Array) -> None:
        self.messages, self.x = messages, x
        self.owners = like(np.repeat(np.arange(len(messages)), messages["entries"]), x)
        self.numbers = namespace(x).arange(len(self.owners)) - self.of("first")  # within the message

    def of(self, field: str) -> Array:
        """A field of its `MESSAGE` for every entry ``(nnz,)``."""
        return like(np.ascontiguousarray(self.messages[field]), self.x)[self.owners]

    def low_bits(self) -> list[tuple[Array, Array]]:
        """For each of the low bits, from the lowest up, which entries have it and where in the buffer it is."""
        xp, shifts = namespace(self.x), self.of("shift")
        places = 8 * self.of("lows") + self.numbers * shifts
        chosen = (xp.flatnonzero(shifts > bit) for bit in range(self.messages["shift"].max()))
        return [(entries, places[entries] + bit) for bit, entries in enumerate(chosen)]


def _span(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """All positions from each start to its stop, one range after the other."""
    lengths = stops - starts
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
