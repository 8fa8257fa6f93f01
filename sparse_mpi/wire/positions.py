"""Packed messages that leave out what their receiver knows: how many entries there are, and indices or values.

Both are bit-packed as in `wire.packed`, without the number with which a message begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire.base import SizeBound
from sparse_mpi.wire.checking import check_indices
from sparse_mpi.wire.codecs import Unrounded
from sparse_mpi.wire.packed import BitPacked


class NoValues(Unrounded):
    """A codec of nothing: no bytes a value."""

    def code_type(self, dtype: Any) -> np.dtype:
        """Return the type of no bytes."""
        return np.dtype("V0")


class KnownCounts(BitPacked):
    """The packed format without numbers of entries."""

    def _number_bytes(self, widths: np.ndarray) -> np.ndarray:
        """Return zeros: the number is not sent."""
        return 0 * widths


@dataclass(frozen=True)
class Complete(KnownCounts):
    """The format of messages that have an entry for every index of their region: only values are sent."""

    def unpack(self, buffer: Array, lengths: np.ndarray, regions: np.ndarray, size: int, dtype: Any) -> SparseVector:
        """See `Wire.unpack`."""
        return self._unpack(buffer, regions[:, 1] - regions[:, 0], lengths, regions, size, dtype)

    def max_size(self, entries: float, width: float, messages: int = 1) -> SizeBound:
        """See `Wire.max_size`: codes and scales."""
        return self._max_size_of_codes(entries, messages)


POSITIONS = KnownCounts(NoValues())


def pack_positions(indices: Array, counts: np.ndarray, regions: np.ndarray) -> Array:
    """Cut ``indices`` into m messages of ``counts`` ``(m,)`` and encode them, 8.6 bits an index at 1 %.

    Args:
        indices: ``(nnz,)``, ascending in each message.
        counts: indices of each message.
        regions: ``(m, 2)`` int64, start and stop of the region in which a message's indices lie.

    Returns:
        The messages, bytes, one after the other; their lengths are those of `positions_lengths`.
    """
    xp, messages = namespace(indices), POSITIONS.lay_out(counts, regions, None)
    return kernels.of(indices).write_messages(messages, indices, xp.empty(0, np.uint8), xp.empty(0, np.float32))


def unpack_positions(buffer: Array, counts: np.ndarray, regions: np.ndarray, size: int) -> Array:
    """Invert `pack_positions`; ``size`` is the length of the vector that the indices are of."""
    indices = kernels.of(buffer).read_messages(POSITIONS.lay_out(counts, regions, None), buffer, size)[0]
    check_indices(indices, counts, regions)
    return indices


def positions_lengths(counts: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Return the bytes ``(m,)`` int64 of messages that hold ``counts`` ``(m,)`` indices in ``regions`` ``(m, 2)``."""
    return POSITIONS.lengths_of(counts, regions, 0, None)
