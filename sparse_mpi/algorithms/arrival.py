"""Messages with entries of one region, from all ranks: unpacked as they arrive."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector, concatenate
from sparse_mpi.wire import Packed


class Messages(Protocol):
    """What an exchange needs of a `Wire`, whose members these are."""

    @property
    def lossless(self) -> bool:
        """Return whether values arrive unchanged."""

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """See `Wire.pack`."""

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack`."""


def arrived(packed: Packed, region: np.ndarray, wire: Messages, comm: Comm) -> SparseVector:
    """Send each rank its message, and unpack what has come while other messages are on their way.

    Args:
        packed: a message for each rank.
        region: ``(2,)`` int64, the first index that other ranks send to this one, and the end of these indices.
        wire: the message format.
        comm: the ranks.

    Returns:
        The entries of all messages, in the rank order of their senders.
    """
    parts: dict[int, SparseVector] = {}

    def take(first: int, messages: Array, lengths: np.ndarray) -> None:
        parts[first] = unpacked(messages, lengths, region, wire, packed.vector)

    comm.streamed_alltoallv(packed.buffer, packed.lengths, take)
    in_order = [parts[first] for first in sorted(parts)]
    return in_order[0] if len(in_order) == 1 else concatenate(in_order)


def unpacked(
    messages: Array, lengths: np.ndarray, region: np.ndarray, wire: Messages, like: SparseVector
) -> SparseVector:
    """Return the entries of messages of these ``lengths`` with indices of one ``region``, with values as ``like``'s."""
    return wire.unpack(messages, lengths, np.tile(region, (len(lengths), 1)), like.size, like.values.dtype)
