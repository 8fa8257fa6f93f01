"""Messages of indices without values, bit-packed as in `wire.packed`: 8.6 bits an index at 1 %."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.wire.codecs import Unrounded
from sparse_mpi.wire.packed import BitPacked


class _NoValues(Unrounded):
    """A codec of nothing: no bytes a value."""

    def code_type(self, dtype: Any) -> np.dtype:
        """Return the type of no bytes."""
        return np.dtype("V0")


LAYOUT = BitPacked(_NoValues())


def pack_positions(indices: Array, counts: np.ndarray, regions: np.ndarray) -> Array:
    """Cut ``indices`` into m messages of ``counts`` ``(m,)`` and encode them.

    Args:
        indices: ``(nnz,)``, ascending in each message.
        counts: indices of each message.
        regions: ``(m, 2)`` int64, start and stop of the region in which a message's indices lie.

    Returns:
        The messages, bytes, one after the other; their lengths are those of `positions_lengths`.
    """
    xp, messages = namespace(indices), LAYOUT.lay_out(counts, regions, None)
    return kernels.of(indices).write_messages(messages, indices, xp.empty(0, np.uint8), xp.empty(0, np.float32))


def unpack_positions(buffer: Array, counts: np.ndarray, regions: np.ndarray, size: int) -> Array:
    """Invert `pack_positions`; ``size`` is the length of the vector that the indices are of."""
    return kernels.of(buffer).read_messages(LAYOUT.lay_out(counts, regions, None), buffer, size)[0]


def positions_lengths(counts: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Return the bytes ``(m,)`` int64 of messages that hold ``counts`` ``(m,)`` indices in ``regions`` ``(m, 2)``."""
    return LAYOUT.lengths_of(counts, regions, 0, None)
