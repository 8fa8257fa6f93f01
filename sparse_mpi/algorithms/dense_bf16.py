"""Dense allreduce in bfloat16: a fairer baseline than float32, with half the bytes and no sparsity.

Costs n(P-1)/P words and P - 1 + ceil(log2 P) messages a rank. MPI has no bfloat16 sum, so this is a reduce-scatter of
regions of equal width, which owners add in acc's dtype and in rank order, and an allgather. Returns a dense sum,
rounded to bfloat16 before and after the addition. The first error stays in the residual of the rank that rounded, the
second in the region owner's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.sparse import Layout, NoState, equal_boundaries


@dataclass(frozen=True)
class DenseBF16(Algorithm):
    """Sum every element in half the bytes; k is ignored."""

    traits: ClassVar[Traits] = Traits(lossless=False, in_default_plans=True)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: NoState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, NoState]:
        """Return the sum ``(n,)``, bfloat16 values in acc's dtype.

        ``sent`` is acc rounded, less the sum's rounding error in this rank's region.
        """
        # Reduce-scatter: round, send every region to its owner, and add in acc's dtype and in rank order.
        bounds = equal_boundaries(len(acc), comm.size)
        widths = np.diff(bounds)
        own = slice(bounds[comm.rank], bounds[comm.rank + 1])
        sent = namespace(acc).empty(len(acc), acc.dtype)
        message = kernels.of(acc).to_bfloat16(acc, back=sent)
        received, _ = comm.alltoallv(message, widths, np.full(comm.size, widths[comm.rank]))
        exact = namespace(acc).zeros(widths[comm.rank], acc.dtype)
        for part in received.reshape(comm.size, -1):
            kernels.of(exact).accumulate(exact, part)
        # Allgather the sums, rounded once more.
        gathered, _ = comm.allgatherv(kernels.of(acc).to_bfloat16(exact), widths)
        total = widened(gathered).astype(acc.dtype, copy=False)
        # Owed: the first rounding error stays with the sender, the second with the region's owner.
        with np.errstate(invalid="ignore"):
            sent[own] += total[own] - exact
        return Reduction(total, sent), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        n, widest = layout.size, -(-layout.size // ranks)
        elements = n - n // ranks + widest * (ranks - 1)
        return Bound(0, 0, ranks - 1 + rounds(ranks), 0, extra=2 * elements)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return layout.size, layout.size
