"""TopkA: allgather of every rank's selection, summed by index in rank order.

Costs 2k(P-1) words and ceil(log2 P) messages a rank, and as many small ones for the counts. Returns the sum of all
selections, up to kP entries. The simplest sparse allreduce, and the cheapest for few ranks. If the selector picks the
same positions on every rank (`random`), one allreduce of the values does: 2k(P-1)/P words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.exchange import run_lengths
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected, most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, merge
from sparse_mpi.wire import Coo, Wire, pack_whole, unpack_whole


@dataclass(frozen=True)
class TopkA(Algorithm):
    """Allgather the selections and add them up.

    Args:
        selector: picks the entries to send.
        wire: the message format.
    """

    selector: Selector = Threshold()
    wire: Wire = Coo()

    @cached_property
    def traits(self) -> Traits:
        alike = not self.selector.shared  # else an allreduce adds the values
        return Traits(lossless=self.wire.lossless, accumulates=True, in_default_plans=True, exact_order=alike)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: object, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        # Select: each rank its largest entries.
        selected, state = self.selector.select(acc, k, state, add)
        # Allreduce the values, where all ranks select the same positions.
        if self.selector.shared:
            total = selected._replace(values=comm.allreduce(selected.values))
            return Reduction(total, selected), state
        # Otherwise pack the selection, allgather, and merge in rank order.
        packed = pack_whole(self.wire, selected)
        rows, counts = comm.allgatherv(packed.buffer)
        gathered = unpack_whole(self.wire, rows, counts, len(acc), acc.dtype)
        return Reduction(merge(gathered, run_lengths(counts, self.wire)), packed.vector), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        most = most_selected(self.selector, layout, k)
        if self.selector.shared:
            return Bound(0, 2 * most * (ranks - 1) / ranks, 2 * rounds(ranks), 0)
        payload = self.wire.max_size(most, layout.size) * (ranks - 1)
        return Bound.of(payload, 2 * rounds(ranks), control=4 * (ranks - 1))

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return fewest_selected(self.selector, k), min(layout.size, most_selected(self.selector, layout, k) * ranks)
