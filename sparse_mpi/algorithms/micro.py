"""MiCRO (Yoon & Oh, HiPC'23; as in ExDyna): every rank chooses entries in its own part, and all ranks sum them.

Costs 3k(P-1)/P words a rank, k(P-1)/P for indices, a quarter more at most, in 3 ceil(log2 P) messages, and ceil(log2 P)
small ones for the counts. Returns about k entries.

Ranks take P parts of the elements in turns. A rank chooses the largest entries of its part; the indices are gathered,
and one allreduce adds the values of all ranks there. A chosen entry is summed whole, all ranks clear it, and none is
chosen twice.

Departs from the paper: parts are block-cyclic, because large entries stand together; a rank chooses between its share
over ``slack`` and ``slack`` times its share; the threshold is corrected in proportion to the count. NaN or Inf anywhere
on a rank reaches the result. Messages have no `Wire` format: indices travel without values, and values unrounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import ClassVar

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.partition import Partition
from sparse_mpi.arrays import Array, index_dtype, magnitude_bits, namespace
from sparse_mpi.checks import check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import Layout, SparseVector, at_least, concatenate, merge, truncate, truncate_least
from sparse_mpi.states import ranged

GAIN = 1 / 5  # octaves that the threshold moves for one of the count: magnitudes of gradients are about as steep


@dataclass(frozen=True)
class _MiCROState:
    # magnitude bits; 0 before the first step, and as long as all is zero
    threshold: int = ranged("[0, bits)", 0, replicated=True)
    turn: int = ranged("[0, P)", 0, replicated=True)  # the rank that has the first block


@dataclass(frozen=True)
class MiCRO(Algorithm):
    """Sparse allreduce of about k entries, each chosen by one rank.

    Args:
        slack: a rank chooses at least its share of k over this, and at most its share times this.
        block: number of neighbouring elements in one part.
    """

    traits: ClassVar[Traits] = Traits(exact_order=False)

    slack: float = 1.25
    block: int = 64

    def __post_init__(self) -> None:
        check_range("slack", self.slack, "(1, inf)", "1.25 times the share is usual")
        check_whole("block", self.block, 1, "element", "64 is usual")

    def init(self, layout: Layout, k: int, ranks: int) -> _MiCROState:
        return _MiCROState()

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: _MiCROState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, _MiCROState]:
        """Return the sums at all chosen positions; ``sent`` is acc at these positions."""
        # Select: every rank in the part that it owns in this step.
        partition = Partition(len(acc), comm.size, self.block, state.turn - comm.rank)
        chosen = self._choose(acc, partition, k, state.threshold)
        # Allgather the indices: all ranks contribute their entries at the union.
        indices, counts = comm.allgatherv(chosen.indices)
        union = merge(SparseVector(indices, acc[indices], len(acc))).indices
        sent = SparseVector(union, acc[union], len(acc))
        # Allreduce the entries of all ranks at the union; all of them clear these entries.
        total = sent._replace(values=comm.allreduce(sent.values))

        # Adapt the threshold in proportion to the distance of the count from k; the first step measures it.
        if state.threshold:
            octave = 1 << np.finfo(acc.dtype).nmant
            moved = state.threshold + round(GAIN * octave * log2(counts.sum() / max(k, comm.size)))
            threshold = min(max(moved, 1), _infinite(acc) - 1)
        else:
            least = np.array([int(truncate_least(chosen, chosen.nnz)[1]) // comm.size], np.int64)
            threshold = int(comm.allreduce(least, control=True)[0])
        return Reduction(total, sent), _MiCROState(threshold, (state.turn + 1) % comm.size)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        n = layout.size
        most = _entries(self.slack * k, Partition(n, ranks, self.block).widest, n)
        values = 2 * min(ranks * most, n) * (ranks - 1) / ranks
        extra = index_dtype(n).itemsize * most * (ranks - 1)
        return Bound(0, values, 6 * rounds(ranks), 4 * (ranks - 1) + 16, extra)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return max(1, k / self.slack - ranks), min(layout.size, self.slack * k + ranks)

    def _choose(self, acc: Array, partition: Partition, k: int, threshold: int) -> SparseVector:
        """Return the largest entries of this rank's part, or the vector's first element if empty."""
        # Select in the part, and number the entries as in acc.
        n, part = len(acc), partition.part(acc, 0)
        if len(part):
            largest = self._largest(part, _entries(k, len(part), n), _entries(self.slack * k, len(part), n), threshold)
            chosen = partition.restore(SparseVector(largest.indices.astype(index_dtype(n)), largest.values, n))
        else:
            chosen = SparseVector(namespace(acc).zeros(1, index_dtype(n)), acc[:1], n)
        # Report NaN and Inf, of any part, in place of the smallest of these, so that they reach the total.
        nonfinite = at_least(acc, _infinite(acc), most=chosen.nnz)
        if nonfinite is None:
            return top_k(acc, chosen.nnz)
        return truncate(merge(concatenate([chosen, nonfinite])), chosen.nnz) if nonfinite.nnz else chosen

    def _largest(self, part: Array, share: int, most: int, threshold: int) -> SparseVector:
        if not threshold or share == len(part):
            return top_k(part, share)
        reached = at_least(part, threshold, most)
        if reached is None:
            return top_k(part, most)
        least = max(1, int(share / self.slack))
        return reached if reached.nnz >= least else top_k(part, least)


def _infinite(acc: Array) -> int:
    return int(magnitude_bits(np.array([np.inf], acc.dtype))[0])


def _entries(k: float, width: int, size: int) -> int:
    return max(1, ceil(k * width / size))
