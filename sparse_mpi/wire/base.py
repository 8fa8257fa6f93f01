"""Protocol of wire formats: how entries become messages, and which values arrive.

Here *rows* are rows of a matrix. A transport moves a ``buffer`` of consecutive messages; ``lengths`` count items along
its first axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.codecs import Codec


class Packed(NamedTuple):
    """Consecutive messages in a buffer, ready to be sent."""

    buffer: Array  #: all messages, for the transport
    lengths: Any  #: (m,) int64, items of each message along the first axis of ``buffer``; as `split_counts` returns it
    vector: SparseVector  #: the entries as the receivers will see them, rounded unless the format is lossless


@dataclass(frozen=True)
class SizeBound:
    """An upper bound on the size of messages, of vectors of any type."""

    pairs: float = 0.0  #: (index, value) pairs in full
    values: float = 0.0  #: values in full, without index
    extra: float = 0.0  #: bytes besides, of packed indices, rounded values, heads and padding

    def __add__(self, other: SizeBound) -> SizeBound:
        return SizeBound(self.pairs + other.pairs, self.values + other.values, self.extra + other.extra)

    def __mul__(self, number: float) -> SizeBound:
        return SizeBound(number * self.pairs, number * self.values, number * self.extra)

    def bytes(self, value: int = 4) -> float:
        """Return the bytes, with int32 indices and ``value`` bytes a value."""
        return (4 + value) * self.pairs + value * self.values + self.extra

    def max(self, other: SizeBound) -> SizeBound:
        """Return the larger of both bounds, for any type of values."""
        for more, less in ((self, other), (other, self)):
            if more.pairs >= less.pairs and all(more.bytes(value) >= less.bytes(value) for value in (2, 8)):
                return more
        return SizeBound(max(self.pairs, other.pairs), max(self.values, other.values), max(self.extra, other.extra))


@runtime_checkable
class Wire(Protocol):
    """A wire format, which is a frozen dataclass. A message holds the entries of one region ``[start, stop)``.

    The receiver must know the region. A message without entries has length 0.
    """

    @property
    def lossless(self) -> bool:
        """Return whether values arrive unchanged. If not, the sender keeps rounding errors; see `Packed.vector`."""

    @property
    def codec(self) -> Codec | None:
        """Return the codec that writes values, if any."""
        return None

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """Cut the entries into m messages of ``counts`` ``(m,)`` entries and encode them.

        ``regions`` ``(m, 2)`` int64 are start and stop of each message's region.
        """

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """Decode messages into their entries, in message order: by index if the regions ascend.

        Args:
            buffer: messages, one after the other.
            lengths: ``(m,)`` items along the first axis of ``buffer``.
            regions: ``(m, 2)`` int64, start and stop of each message's region.
            size: length of the dense vector.
            dtype: dtype of its values.
        """

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        """Encode all entries as one message, which may hold the region ``(2,)`` densely if shorter."""

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any
    ) -> SparseVector:
        """Decode messages of `pack_sum`, with the arguments of `unpack`; a dense region gives its non-zero elements."""

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> np.ndarray:
        """Return the lengths ``(m,)`` int64 of messages with ``entries`` ``(m,)`` in ``regions`` ``(m, 2)``."""

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        """Return an upper bound on the size of messages, with ``entries`` entries in regions of ``width`` in all."""

    def max_size_of_sum(self, entries: float, width: float) -> SizeBound:
        """Return an upper bound on the size of a message of `pack_sum`: at most ``entries`` of ``width`` elements."""

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        """Encode a vector as one message; all ranks know each row's number of entries by ``pattern``.

        The buffer is bytes ``(b,)``, of the same length on every rank.
        """

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
        """Decode all ranks' messages ``(P, b)`` of `pack_rows`: their entries in rank order."""

    def row_overhead(self, pattern: Pattern) -> int:
        """Return by how many bytes a message of `pack_rows` exceeds its float32 values; negative if rounded."""


def pack_whole(wire: Wire, vector: SparseVector) -> Packed:
    """Encode all entries as one message, with the whole vector as its region."""
    return wire.pack(vector, np.array([len(vector.indices)]), np.array([[0, vector.size]]))


def unpack_whole(wire: Wire, buffer: Array, lengths: Any, size: int, dtype: Any) -> SparseVector:
    """Decode messages of `pack_whole`, of ``lengths`` ``(m,)``, into their entries, in message order."""
    return wire.unpack(buffer, np.asarray(lengths), np.tile([0, size], (len(lengths), 1)), size, dtype)
