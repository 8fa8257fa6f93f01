"""What a wire format is: how entries become messages, and what of them arrives."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import SparseVector


class Packed(NamedTuple):
    """Messages, one after the other, ready to be sent."""

    buffer: Array  # what the transport moves; its first axis is what ``lengths`` counts
    lengths: np.ndarray  # (m,) int64, items of each message along the first axis of ``buffer``
    vector: SparseVector  # the entries as those who unpack them see them: rounded, where the format is not lossless


class Wire(Protocol):
    """A format: a frozen dataclass. A message holds the entries of one region ``[start, stop)`` of the indices.

    Whoever unpacks a message must know its region. A region without entries is a message without rows.
    """

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they are. Otherwise the sender owes what rounding took, see `Packed`."""

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """Messages of the next ``counts`` ``(m,)`` entries each, which lie in ``regions`` ``(m, 2)`` int64."""

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """The entries of messages, one message's after the other's: in index order where the regions ascend.

        Args:
            buffer: the messages, one after the other.
            lengths: ``(m,)`` items of each along the first axis of ``buffer``.
            regions: ``(m, 2)`` int64, start and stop of each one's region.
            size, dtype: of the dense vector.
        """

    def pack_sum(self, vector: SparseVector, region: np.ndarray) -> Packed:
        """One message of all entries, in which the region ``(2,)`` may be dense, where that is smaller."""

    def unpack_sums(
        self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any
    ) -> SparseVector:
        """`unpack` for messages of `pack_sum`; of a dense region its non-zero elements."""

    def lengths_of(self, entries: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> np.ndarray:
        """``(m,)`` int64: lengths of the messages of so many ``entries`` ``(m,)`` in these ``regions`` ``(m, 2)``."""

    def overhead(self) -> int:
        """Bytes by which a message may exceed `pair_bytes` for each of its entries."""

    def pack_rows(self, vector: SparseVector, pattern: Pattern) -> Packed:
        """One message of all entries, of which every rank knows how many each row of each tensor has.

        Its rows are bytes ``(b,)``, as many on every rank.
        """

    def unpack_rows(self, messages: Array, pattern: Pattern, size: int, dtype: Any) -> SparseVector:
        """The entries of messages of `pack_rows`, those of all ranks ``(P, b)``, one rank's after the other's."""

    def row_overhead(self, pattern: Pattern) -> int:
        """Bytes that a message of `pack_rows` has beyond float32 values, negative where these are rounded; no more
        beyond values of float64."""


def pack_whole(wire: Wire, vector: SparseVector) -> Packed:
    """One message, of all there is."""
    return wire.pack(vector, np.array([vector.nnz]), np.array([[0, vector.size]]))


def unpack_whole(wire: Wire, buffer: Array, lengths: Any, size: int, dtype: Any) -> SparseVector:
    """The entries of messages of `pack_whole`, of ``lengths`` ``(m,)`` each."""
    return wire.unpack(buffer, np.asarray(lengths), np.tile([0, size], (len(lengths), 1)), size, dtype)


def regions_of(boundaries: np.ndarray) -> np.ndarray:
    """``(m, 2)``: start and stop of each region between ``boundaries`` ``(m + 1,)``."""
    return np.stack([boundaries[:-1], boundaries[1:]], axis=1)
