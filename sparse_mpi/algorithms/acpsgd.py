"""ACP-SGD (Zhang et al., ICDCS'23): PowerSGD with its two halves in alternate steps, one allreduce each.

Costs 2(P-1)/P words for each element of the left or, in turns, right rank-r factors of all matrices and each dense
element, and 2 ceil(log2 P) messages a rank. Returns a dense sum.

M_i is the matrix on rank i. Even steps: Q = orth(Q), P_i = M_i Q; odd steps: P = orth(P), Q_i = M_i^T P. The
orthogonalised factor is the last step's sum. total = P Q^T with the new sum; sent_i = P_i Q^T or P Q_i^T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_mpi.algorithms.base import Bound, Reduction
from sparse_mpi.algorithms.low_rank import LowRank, LowRankState, orthonormal, parts_of
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.sparse import Layout


@dataclass(frozen=True)
class ACPSGD(LowRank):
    """One allreduce a step: left factors in even steps, right ones in odd steps; k is ignored."""

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: LowRankState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, LowRankState]:
        parts = parts_of(layout, self.rank)
        # Without any matrix worth compressing, this is a dense allreduce.
        if not parts.groups:
            return Reduction(comm.allreduce(acc), acc), state
        with np.errstate(over="ignore", invalid="ignore"):
            # Orthogonalise the sum of the last step: it is the basis of this one.
            last, were_left = self.last_factors(state, layout, acc)
            bases, left = [orthonormal(factors, were_left) for factors in last], not were_left
            # Project this rank's matrices on the basis, and add the factors of all ranks up.
            mine = parts.project(acc, bases, left, dense=True)
            summed = comm.allreduce(mine)

            # Multiply the factors out: summed factors give total, this rank's factors give sent.
            def expand(message: Array) -> Array:
                factors = parts.factors(message, left)
                pair = (factors, bases) if left else (bases, factors)
                return parts.expand(*pair, message[parts.factors_size(left) :])

            return Reduction(expand(summed), expand(mine)), self.next_state(layout, summed, left)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        parts = parts_of(layout, self.rank)
        elements = parts.dense_size + max(parts.factors_size(left=True), parts.factors_size(left=False))
        return Bound(0, 2 * elements * (ranks - 1) / ranks, 2 * rounds(ranks), 0)
