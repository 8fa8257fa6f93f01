"""PowerSGD (Vogels et al., NeurIPS'19): gradient matrices as products of rank-r factors, by power iteration.

Costs 2(P-1)/P words for each element of all matrices' factors, r (rows + columns) a matrix, and each dense element, and
4 ceil(log2 P) messages a rank. Returns a dense sum.

With M_i the matrix on rank i and Q the last step's right factor (warm start): P = orth(sum of M_i Q), then Q_i = M_i^T
P, and total = P (sum of Q_i)^T, the projection of the summed gradient on the span of P. sent_i = P Q_i^T. The first
allreduce carries the dense tensors too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparse_mpi.algorithms.base import Bound, Reduction
from sparse_mpi.algorithms.low_rank import LowRank, LowRankState, orthonormal, parts_of
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.sparse import Layout


@dataclass(frozen=True)
class PowerSGD(LowRank):
    """Two allreduces a step: left factors, then right factors; k is ignored."""

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: LowRankState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, LowRankState]:
        parts = parts_of(layout, self.rank)
        # Without any matrix worth compressing, this is a dense allreduce.
        if not parts.groups:
            return Reduction(comm.allreduce(acc), acc), state
        dense = parts.factors_size(left=True)  # start of the dense elements in the first message
        with np.errstate(over="ignore", invalid="ignore"):
            # Multiply by the last step's right factors; the left factors are added up with the dense elements.
            rights, _ = self.last_factors(replace(state, left=False), layout, acc)
            mine = parts.project(acc, rights, left=True, dense=True)
            summed = comm.allreduce(mine)
            # Orthogonalise the sum, and project this rank's matrices on it; the right factors are added up.
            bases = [orthonormal(factors, left=True) for factors in parts.factors(summed, left=True)]
            given = parts.project(acc, bases, left=False, dense=False)
            rights_sum = comm.allreduce(given)
            # Multiply the factors out: summed factors give total, this rank's factors give sent.
            total = parts.expand(bases, parts.factors(rights_sum, left=False), summed[dense:])
            sent = parts.expand(bases, parts.factors(given, left=False), mine[dense:])
            return Reduction(total, sent), self.next_state(layout, rights_sum, left=False)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        parts = parts_of(layout, self.rank)
        elements = parts.dense_size + parts.factors_size(left=True) + parts.factors_size(left=False)
        allreduces = 2 if parts.groups else 1
        return Bound(0, 2 * elements * (ranks - 1) / ranks, 2 * allreduces * rounds(ranks), 0)
