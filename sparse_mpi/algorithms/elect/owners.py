"""Ownership of entries: neighbouring indices belong to different ranks, whose shares are equal on any gradient.

Regions of neighbouring indices would have to be drawn, and drawn anew, for every rank to have about as many votes to
count as any other. Here indices are dealt out to the ranks one by one, and each round begins at another rank, so that
columns of a matrix are spread too. No message is needed, and no rank has more than others but by chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.sparse import SparseVector

FIBONACCI = np.uint32(2654435769)  # 2^32 over the golden ratio: its multiples are spread evenly


class Owners(NamedTuple):
    """A permutation of the indices that makes each rank's share contiguous, as its *numbers*."""

    size: int  # n, length of the vector
    ranks: int  # P

    @property
    def width(self) -> int:
        """Return how many numbers each rank has; some numbers of the last round have no index."""
        return -(-self.size // self.ranks)

    @property
    def boundaries(self) -> np.ndarray:
        """Return the boundaries ``(P + 1,)`` int64 of the ranks' numbers."""
        return np.arange(self.ranks + 1, dtype=np.int64) * self.width

    def numbered(self, vector: SparseVector) -> SparseVector:
        """Return the entries by ascending number, as a vector of all numbers."""
        # Deal the indices out in rounds, each of which begins at a rank that a hash chooses.
        size = self.width * self.ranks
        indices = vector.indices.astype(index_dtype(size), copy=False)  # numbers reach beyond n
        rounds = indices // self.ranks
        owners = indices - rounds * self.ranks + self._first(rounds)
        owners -= self.ranks * (owners >= self.ranks)
        numbers = owners * self.width + rounds
        # Indices ascend, and so do the numbers of each owner.
        order = namespace(numbers).argsort(owners.astype(np.uint16), kind="stable")
        return SparseVector(numbers[order], vector.values[order], size)

    def indices(self, numbers: Array) -> Array:
        """Return the indices ``(m,)`` of these ``numbers`` ``(m,)``, in their order."""
        owners = numbers // self.width
        rounds = numbers - owners * self.width
        places = owners - self._first(rounds)
        places += self.ranks * (places < 0)
        return (rounds * self.ranks + places).astype(index_dtype(self.size), copy=False)

    def _first(self, rounds: Array) -> Array:
        """Return the rank ``(m,)`` with which each of these ``rounds`` ``(m,)`` begins, by Fibonacci hashing.

        16 bits of the hash times P, without the lower 16 bits of the product: a remainder would take four times as
        long.
        """
        hashes = (rounds.astype(np.uint32) * FIBONACCI) >> np.uint32(16)
        return ((hashes * np.uint32(self.ranks)) >> np.uint32(16)).astype(rounds.dtype)
