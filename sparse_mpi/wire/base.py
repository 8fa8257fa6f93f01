"""The protocol of wire formats: how entries become messages, and which values arrive.

In this folder *rows* are always rows of a matrix. What a transport moves is a ``buffer``, in which messages stand one
after another; their ``lengths`` count items along its first axis.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.codecs import Codec


class Packed(NamedTuple):
    """Messages that stand one after the other in a buffer, ready to be sent."""

    buffer: Array  #: all messages; what the transport moves
    lengths: np.ndarray  #: (m,) int64, items of each message along the first axis of ``buffer``
    vector: SparseVector  #: the entries as the receivers will see them, rounded unless the format is lossless


class Most(NamedTuple):
    """The most that some messages take, of vectors of any type."""

    pairs: float = 0.0  #: (index, value) pairs in full
    values: float = 0.0  #: values in full, without index
    extra: float = 0.0  #: bytes besides, of packed indices, rounded values, heads and padding

    def times(self, number: float) -> Most:
        """Return the most that so many times these messages take."""
        return Most(*(number * part for part in self))

    def beside(self, *others: Most) -> Most:
        """Return the most that these messages and others take."""
        return Most(*map(sum, zip(self, *others, strict=True)))

    def bytes(self, value: int = 4) -> float:
        """Return the bytes where indices are int32 and a value has so many bytes."""
        return (4 + value) * self.pairs + value * self.values + self.extra

    def either(self, other: Most) -> Most:
        """Return the most that these messages or others take: those that take more, if they do with any values."""
        for more, less in ((self, other), (other, self)):
            if more.pairs >= less.pairs and all(more.bytes(value) >= less.bytes(value) for value in (2, 8)):
                return more
        return Most(*map(max, self, other))


@runtime_checkable
class Wire(Protocol):
    """A wire format, which is a frozen dataclass. A message holds the entries of one region ``[start, stop)``.

    A region is a range of indices. Messages do not carry theirs: the receiver must know it. The message of a region
    without entries has length 0.
    """

    @property
    def lossless(self) -> bool:
        """Return whether values arrive unchanged. If not, the sender keeps the rounding error; see `Packed.vector`."""

    @property
    def codec(self) -> Codec | None:
        """Return the codec that writes values, or None if the format has none."""
        return None

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """Cut the entries into m messages and encode them.

        Args:
            vector: the entries of all messages, in their order.
            counts: ``(m,)`` entries of each message.
            regions: ``(m, 2)`` int64, start and stop of the region in which a message's entries lie.
        """

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """Decode messages into their entries, in the order of the messages: by index if the regions ascend.

        Args:
            buffer: the messages, one after the other.
            lengths: ``(m,)`` items of each along the first axis of ``buffer``.
            regions: ``(m, 2)`` int64, start and stop of each message's region.
            size: length of the dense vector.
            dtype: dtype of its values.
        """

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        """Encode all entries as one message, which may hold the region ``(2,)`` densely where that is shorter."""

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any
    ) -> SparseVector:
        """Decode messages of `pack_sum`, with the arguments of `unpack`; a dense region gives its non-zero elements."""

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> np.ndarray:
        """Return the lengths ``(m,)`` int64 of messages that hold ``entries`` ``(m,)`` in ``regions`` ``(m, 2)``."""

    def most(self, entries: float, width: float, messages: int = 1) -> Most:
        """Return the most that so many messages take which together hold so many entries, or fewer.

        Args:
            entries: of all messages.
            width: elements of their regions, added up over the messages.
            messages: how many there are.
        """

    def most_of_sum(self, entries: float, width: float) -> Most:
        """Return the most that a message of `pack_sum` takes, of so many entries, or fewer, among so many elements."""

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        """Encode as one message a vector that has as many entries in each row of each tensor as ``pattern`` says.

        All ranks know the pattern, so that it is not sent. The buffer is bytes ``(b,)``, as long on every rank.
        """

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
        """Decode the messages ``(P, b)`` that all ranks made by `pack_rows`: their entries in rank order."""

    def row_overhead(self, pattern: Pattern) -> int:
        """Return by how many bytes a message of `pack_rows` exceeds its float32 values.

        It is negative where values are rounded. A message of float64 values exceeds them by no more than that.
        """


def pack_whole(wire: Wire, vector: SparseVector) -> Packed:
    """Encode all entries as one message whose region is the whole vector."""
    return wire.pack(vector, np.array([vector.nnz]), np.array([[0, vector.size]]))


def unpack_whole(wire: Wire, buffer: Array, lengths: Any, size: int, dtype: Any) -> SparseVector:
    """Decode messages of `pack_whole`, of ``lengths`` ``(m,)``, into their entries, in the order of the messages."""
    return wire.unpack(buffer, np.asarray(lengths), np.tile([0, size], (len(lengths), 1)), size, dtype)


def regions_of(boundaries: np.ndarray) -> np.ndarray:
    """Return start and stop ``(m, 2)`` of each region between ``boundaries`` ``(m + 1,)``."""
    return np.stack([boundaries[:-1], boundaries[1:]], axis=1)
