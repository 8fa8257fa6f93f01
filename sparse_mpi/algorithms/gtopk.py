"""gTopk (Shi et al., ICDCS'19): a binomial tree that cuts every partial sum to its top k, then a broadcast.

Costs 2k words up and up to 2k ceil(log2 P) words down: 4k ceil(log2 P) on the critical path, which has 2 ceil(log2 P)
messages, and ceil(log2 P) small ones for the count. Returns k entries, on any number of ranks.

The published residual rule returns a rank's selected entries that the result lacks. A partial sum dropped in the tree
at an index that reached the root by another branch is then lost. By default the rank that drops it adds it to its
residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_choice
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.comm.counting import received
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, concatenate, contains, merge, subtract, take, truncate, where
from sparse_mpi.wire import Coo, Wire, pack_whole, unpack_whole


@dataclass(frozen=True)
class GTopk(Algorithm):
    """Tree of top-k merges.

    Args:
        selector: picks the entries to send.
        residual: ``"merger"`` (dropped partial sums stay with the rank that drops them) or ``"published"``.
        wire: the message format.
    """

    selector: Selector = Threshold()
    residual: str = "merger"
    wire: Wire = Coo()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("residual", self.residual, ("merger", "published"))

    @cached_property
    def traits(self) -> Traits:
        merger = self.residual == "merger"
        return Traits(
            conserves=merger,
            delegates_residual=merger,
            lossless=self.wire.lossless,
            accumulates=True,
            in_default_plans=True,
        )

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: object, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        # Select: each rank its largest entries.
        selected, state = self.selector.select(acc, k, state, add)
        # Merge up the tree: every partial sum is cut to its k largest entries.
        largest = truncate(selected, k)
        rows, dropped = self._climb(largest, k, comm)
        # Broadcast the root's result, which is the total.
        rows = comm.bcast(rows)
        total = unpack_whole(self.wire, rows, [len(rows)], len(acc), acc.dtype)
        # Owed by the published rule: selected entries that the result lacks. By ours: entries that this rank dropped.
        if self.residual == "published":
            return Reduction(total, where(selected, total)), state
        return Reduction(total, subtract(largest, dropped)), state

    def _climb(self, carried: SparseVector, k: int, comm: Comm) -> tuple[Array, SparseVector]:
        """Return the message of this rank's last sum (rank 0: the result) and all entries it dropped."""
        # In round j, a rank whose lowest set bit is j hands its sum to the rank 2^j below it and is done
        size, dtype = carried.size, carried.values.dtype
        nothing = take(carried, slice(0, 0))
        dropped, silence = [nothing], pack_whole(self.wire, nothing).buffer
        gap = 1
        while gap < comm.size and not comm.rank & gap:
            if comm.rank + gap < comm.size:
                # Merge: add the sum of the branch that joins here, cut it to k entries, and note the rest.
                rows = received(comm.sendrecv(silence, dest=None, source=comm.rank + gap))
                both = merge(concatenate([carried, unpack_whole(self.wire, rows, [len(rows)], size, dtype)]))
                carried = truncate(both, k)
                dropped.append(take(both, ~contains(carried, both.indices)))
            gap *= 2
        # Send the sum on as a message, and note its rounding error.
        packed = pack_whole(self.wire, carried)
        if not self.wire.lossless:
            dropped.append(subtract(carried, packed.vector))
        if comm.rank:
            comm.sendrecv(packed.buffer, dest=comm.rank - gap, source=None)
        return packed.buffer, merge(concatenate(dropped))

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return k pairs in every round: the root sends the most, on the way down."""
        down = rounds(ranks)
        return Bound.of(self.wire.max_size(k, layout.size) * down, 2 * down, control=8 * down)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return fewest_selected(self.selector, k), k
