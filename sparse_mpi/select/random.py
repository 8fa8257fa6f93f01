"""Random selection: positions are the same on every rank, so that values are sent without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi.arrays import Array, like
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.select.draw import Drawn, check_seed, positions
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(frozen=True)
class Random(Selector):
    """Random-k (Stich et al., NeurIPS 2018): k positions drawn anew in every step, the same on every rank.

    Magnitudes play no part: a NaN or Inf stays in the residual until its position is drawn.

    Args:
        seed: seed of the positions, an integer in ``[0, 2**64)``; must be the same on all ranks.
    """

    seed: int = 0

    shared: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def init(self, layout: Layout, k: int) -> Drawn:
        """Return the state before the first step, in which nothing has been drawn."""
        return Drawn()

    def select(self, x: Array, k: int, state: Drawn, add: Array | None = None) -> tuple[SparseVector, Drawn]:
        """Select exactly k entries of ``x`` ``(n,)``, the same positions on every rank."""
        accumulate(x, add)
        indices = like(positions(len(x), k, self.seed, state.step).astype(index_dtype(len(x))), x)
        return SparseVector(indices, x[indices], len(x)), state.next()
