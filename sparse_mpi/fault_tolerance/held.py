"""The values of a copy, of which some have left their owner since: `Held`.

In host memory these are noted in a bit each: notes of n / 8 bytes stay in a cache that the copy is too large for.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, is_device

WORD = 8  # bits in an entry of the notes


class Held:
    """A copy of a residual ``(n,)``.

    Args:
        values: the copy; kept.
    """

    def __init__(self, values: Array) -> None:
        self._values = values
        self._dropped = None if is_device(values) else np.zeros(-(-len(values) // WORD), np.uint8)

    def drop(self, indices: Array) -> None:
        """Set entries to 0."""
        if self._dropped is None:
            kernels.of(self._values).clear(self._values, indices)
        else:
            kernels.of(self._values).mark(self._dropped, indices)

    def renew(self, place: slice, values: Array) -> None:
        """Replace the entries of a ``place`` that begins with a multiple of `WORD`, and ends with one or at n."""
        self._values[place] = values
        if self._dropped is not None:
            self._dropped[place.start // WORD : -(-place.stop // WORD)] = 0

    def values(self) -> Array:
        """Return the copy ``(n,)``, which is given away."""
        if self._dropped is not None:
            dropped = np.unpackbits(self._dropped, count=len(self._values), bitorder="little")
            self._values[dropped.view(bool)] = 0
        return self._values
