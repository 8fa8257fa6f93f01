"""Owners of entries, who count their votes: neighbouring indices have different owners, with equal shares.

Indices are dealt out one by one; each round begins at another rank, which spreads a matrix's columns too. No message is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, first_of
from sparse_mpi.sparse import SparseVector, regions_of

EQUAL = 64  # entries of a rank from which on all ranks have the same number


@dataclass(frozen=True)
class Owners:
    """A permutation of the indices that makes each rank's share contiguous, as its *numbers*."""

    size: int  # n, length of the vector
    ranks: int  # P

    @staticmethod
    @lru_cache(maxsize=64)
    def of(size: int, ranks: int) -> Owners:
        return Owners(size, ranks)

    @cached_property
    def regions(self) -> np.ndarray:
        """Return start and stop ``(P, 2)`` of each rank's numbers; not to be written to."""
        return regions_of(self.boundaries)

    @cached_property
    def width(self) -> int:
        """Return how many numbers a rank owns, including those without an index."""
        return -(-self.size // self.ranks)

    @cached_property
    def boundaries(self) -> np.ndarray:
        return np.arange(self.ranks + 1, dtype=np.int64) * self.width

    @cached_property
    def owned(self) -> np.ndarray:
        """Return each rank's number of entries ``(P,)``, int64."""
        places = np.arange(self.ranks) - first_of(np.array([self.width - 1]), self.ranks)
        return self.width - 1 + (places % self.ranks < self.size - (self.width - 1) * self.ranks)

    @lru_cache(maxsize=64)  # noqa: B019 - one object for each pair of size and ranks
    def quotas(self, k: int, turn: int) -> np.ndarray:
        """Return each rank's share ``(P,)`` of k entries, which sum to k, or to a multiple of P from 64 P on.

        Some ranks may have one more, and change with ``turn``: small k leave none out.
        """
        if k >= self.size:
            return self.owned
        ends = self._divided(k) * np.arange(turn, turn + self.ranks + 1) // self.ranks
        return np.minimum(np.diff(ends), self.owned)

    def most(self, k: int) -> int:
        """Return the most of `quotas` in any turn."""
        return min(-(-self._divided(k) // self.ranks), self.width)

    def _divided(self, k: int) -> int:
        return k - k % self.ranks if EQUAL * self.ranks <= k < self.size else k

    def add(self, x: Array, numbered: SparseVector) -> None:
        kernels.of(x).add_dealt(x, numbered.indices, numbered.values, self.size, self.ranks)

    def indices(self, numbers: Array) -> Array:
        return kernels.of(numbers).undeal(numbers, self.size, self.ranks)
