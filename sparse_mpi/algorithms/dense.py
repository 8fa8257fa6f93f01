"""Dense allreduce: the oracle at k = n and the baseline of every table.

Costs 2n(P-1)/P words and 2 ceil(log2 P) messages a rank. Returns the full sum as a dense array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.sparse import Layout, NoState


@dataclass(frozen=True)
class Dense(Algorithm):
    """Sum every element; k is ignored."""

    traits: ClassVar[Traits] = Traits(in_default_plans=True, exact_order=False)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: NoState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, NoState]:
        # Allreduce: MPI exchanges and merges in one. Nothing is owed.
        return Reduction(comm.allreduce(acc), acc), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        return Bound(0, 2 * layout.size * (ranks - 1) / ranks, 2 * rounds(ranks), 0)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return layout.size, layout.size
