"""Block-cyclic ownership of elements, so that neighbouring large entries have several owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.checks import check_whole
from sparse_mpi.sparse import SparseVector, merge


@dataclass(frozen=True)
class Partition:
    """Block b of the elements belongs to owner ``(b + shift) % owners``.

    `permute` renumbers elements owner by owner, so that each has one region, in order; `restore` undoes it.

    Args:
        size: n, elements.
        owners: P.
        block: elements in a block; fewer if an owner would have none though n >= P.
        shift: the owner of the first block. If every rank passes ``turn - rank``, owner 0 is the rank itself, owner 1
            the next rank and so on, and rank ``turn % owners`` has the first block.
    """

    size: int
    owners: int
    block: int
    shift: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "owners", "block"):
            check_whole(name, getattr(self, name), 1)
        object.__setattr__(self, "block", max(1, min(self.block, self.size // self.owners)))

    @property
    def boundaries(self) -> np.ndarray:
        """Return ``(P + 1,)`` int64: owner q's numbers are ``boundaries[q]`` up to ``boundaries[q + 1]``."""
        # Deal whole blocks to the owners in turns; the last block may be shorter.
        blocks = -(-self.size // self.block)
        widths = self.block * (blocks // self.owners + (self._first(np.arange(self.owners)) < blocks % self.owners))
        widths[(blocks - 1 + self.shift) % self.owners] -= blocks * self.block - self.size
        return np.concatenate([[0], np.cumsum(widths)])

    @property
    def widest(self) -> int:
        return min(self.block * -(-self.size // (self.block * self.owners)), self.size)

    def permute(self, vector: SparseVector) -> SparseVector:
        """Return the same entries, numbered owner by owner and sorted by these numbers."""
        blocks, offsets = vector.indices // self.block, vector.indices % self.block
        owners = (blocks + self.shift) % self.owners
        return merge(
            vector._replace(indices=self._starts(vector)[owners] + blocks // self.owners * self.block + offsets)
        )

    def restore(self, vector: SparseVector) -> SparseVector:
        """Return entries, in any order, with the numbers from before `permute`; duplicates are added."""
        # Find each entry's owner and its place in the region, and from both its block.
        starts = self._starts(vector)
        owners = namespace(starts).searchsorted(starts[1:], vector.indices, side="right").astype(starts.dtype)
        inside = vector.indices - starts[owners]
        blocks = inside // self.block * self.owners + self._first(owners)
        return merge(vector._replace(indices=blocks * self.block + inside % self.block))

    def part(self, x: Array, owner: int) -> Array:
        # View the whole blocks as rows, take every P-th of them, and append the last block if it is the owner's.
        whole = self.size // self.block
        first = self._first(owner)
        blocks = x[: whole * self.block].reshape(whole, self.block)[first :: self.owners].reshape(-1)
        if whole % self.owners != first:
            return blocks
        return namespace(x).concatenate([blocks, x[whole * self.block :]])

    def _first(self, owners: Any) -> Any:
        return (owners - self.shift) % self.owners

    def _starts(self, vector: SparseVector) -> Array:
        return namespace(vector.indices).asarray(self.boundaries.astype(vector.indices.dtype))
