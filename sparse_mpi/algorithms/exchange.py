"""Exchanges of sparse vectors: with all ranks, unpacked as they arrive, and between pairs of ranks."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector, concatenate, take
from sparse_mpi.wire import Packed, Wire, pack_whole, unpack_whole


class WireFormat(Protocol):
    """The members of `Wire` that an exchange needs."""

    @property
    def lossless(self) -> bool:
        """Return whether values arrive unchanged."""

    def pack(self, vector: SparseVector, counts: np.ndarray, regions: np.ndarray) -> Packed:
        """See `Wire.pack`."""

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack`."""


def exchange(packed: Packed, region: np.ndarray, wire: WireFormat, comm: Comm) -> SparseVector:
    """Send each rank its message, and unpack those that have arrived while others are on their way.

    Args:
        packed: a message for each rank.
        region: ``(2,)`` int64, the first index that other ranks send to this one, and the end of these indices.
        wire: the message format.
        comm: the ranks.

    Returns:
        The entries of all messages, in the rank order of their senders.
    """
    # Unpack: each group of messages as it arrives, by the number of its first sender.
    parts: dict[int, SparseVector] = {}

    def take(first: int, messages: Array, lengths: np.ndarray) -> None:
        parts[first] = unpack(messages, lengths, region, wire, packed.vector)

    # Exchange all messages, and put the parts in rank order.
    comm.streamed_alltoallv(packed.buffer, packed.lengths, take)
    in_order = [parts[first] for first in sorted(parts)]
    return in_order[0] if len(in_order) == 1 else concatenate(in_order)


def unpack(
    messages: Array, lengths: np.ndarray, region: np.ndarray, wire: WireFormat, like: SparseVector
) -> SparseVector:
    """Return the entries of messages of these ``lengths`` with indices of one ``region``, with values as ``like``'s."""
    return wire.unpack(messages, lengths, np.tile(region, (len(lengths), 1)), like.size, like.values.dtype)


def swap(vector: SparseVector, wire: Wire, comm: Comm, dest: int | None, source: int | None) -> SparseVector:
    """Send ``vector`` to ``dest``, and return what ``source`` sends: nothing where that is None."""
    nothing = take(vector, slice(0, 0))
    buffer = comm.sendrecv(pack_whole(wire, nothing if dest is None else vector).buffer, dest, source)
    return nothing if buffer is None else unpack_whole(wire, buffer, [len(buffer)], vector.size, vector.values.dtype)
