"""Who counts the votes for which entries: neighbouring indices belong to different ranks, whose shares are equal.

Regions of neighbouring indices would have to be drawn, and drawn anew, for every rank to have about as many votes to
count as any other. Here indices are dealt out to the ranks one by one, and each round begins at another rank, so that
columns of a matrix are spread too. No message is needed, and no rank has more than others but by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.sparse import SparseVector, regions_of


@dataclass(frozen=True)
class Owners:
    """A permutation of the indices that makes each rank's share contiguous, as its *numbers*."""

    size: int  # n, length of the vector
    ranks: int  # P

    @staticmethod
    @lru_cache(maxsize=64)
    def of(size: int, ranks: int) -> Owners:
        """Return the owners that a step before had, with what they know by now."""
        return Owners(size, ranks)

    @cached_property
    def regions(self) -> np.ndarray:
        """Return start and stop ``(P, 2)`` of each rank's numbers; not to be written to."""
        return regions_of(self.boundaries)

    @cached_property
    def width(self) -> int:
        """Return how many numbers each rank has; some numbers of the last round have no index."""
        return -(-self.size // self.ranks)

    @cached_property
    def boundaries(self) -> np.ndarray:
        """Return the boundaries ``(P + 1,)`` int64 of the ranks' numbers."""
        return np.arange(self.ranks + 1, dtype=np.int64) * self.width

    def numbered(self, vector: SparseVector, chosen: Array) -> tuple[SparseVector, np.ndarray]:
        """Return the entries at positions ``chosen``, but zeros, by number, and how many each rank owns ``(P,)``.

        They are entries of a vector of all numbers.
        """
        passes, (indices, values, size) = kernels.of(vector.values), vector
        numbers, values, counts = passes.deal(indices, values, chosen, size, self.ranks)
        return SparseVector(numbers, values, self.width * self.ranks), counts

    def add(self, x: Array, numbered: SparseVector) -> None:
        """Add entries to ``x`` ``(n,)`` in place."""
        kernels.of(x).add_dealt(x, numbered.indices, numbered.values, self.size, self.ranks)

    def indices(self, numbers: Array) -> Array:
        return kernels.of(numbers).undeal(numbers, self.size, self.ranks)
