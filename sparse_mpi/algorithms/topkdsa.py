"""TopkDSA (SparCML: Renggli et al., SC'19): sparse reduce-scatter, then allgather, dense where that is smaller.

Region q of P equal widths belongs to rank q, which adds up the selections there. Costs 4k(P-1)/P words when selections
coincide, up to (2k + n)(P-1)/P when not, and P - 1 + ceil(log2 P) messages a rank, and ceil(log2 P) small ones for the
counts. Returns the sum of all selections, as TopkA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.exchange import exchange
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import (
    Layout,
    equal_boundaries,
    merge,
    regions_of,
    split_counts,
    subtract,
)
from sparse_mpi.wire import Coo, Wire


@dataclass(frozen=True)
class TopkDSA(Algorithm):
    """Split by region, add, allgather.

    Args:
        selector: picks the entries to send.
        wire: the message format.
    """

    selector: Selector = Threshold()
    wire: Wire = Coo()

    @cached_property
    def traits(self) -> Traits:
        return Traits(lossless=self.wire.lossless, accumulates=True, in_default_plans=True)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: object, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        """Return the sum of all selections; ``sent`` is this rank's as it arrives, less its region's rounding error."""
        # Select: each rank its largest entries.
        selected, state = self.selector.select(acc, k, state, add)
        # Split: the entries of each region go to its owner, who adds them up in rank order.
        n, dtype = len(acc), acc.dtype
        boundaries = equal_boundaries(n, comm.size)
        regions = regions_of(boundaries)
        own = regions[comm.rank]
        split = self.wire.pack(selected, split_counts(selected, boundaries), regions)
        summed = merge(*exchange(split, own, self.wire, comm))
        # Allgather the regions' sums, dense where that is smaller.
        packed = self.wire.pack_sum(summed, own)
        rows, counts = comm.allgatherv(packed.buffer)
        total = self.wire.unpack_sums(rows, counts, regions, n, dtype)
        # Owed: rounding errors of the own selection and of the own region's sum.
        if self.wire.lossless:
            return Reduction(total, selected), state
        return Reduction(total, subtract(split.vector, subtract(summed, packed.vector))), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        most = most_selected(self.selector, layout, k)
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        split = self.wire.max_size(most, layout.size, ranks - 1)
        summed = self.wire.max_size_of_sum(most * ranks, -(-layout.size // ranks))
        return Bound.of(split + summed * (ranks - 1), ranks - 1 + 2 * rounds(ranks), control=4 * (ranks - 1))
