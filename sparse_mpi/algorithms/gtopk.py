"""gTopk (Shi et al., ICDCS'19): up a binomial tree, keeping the top k of every partial sum, then a broadcast.

Costs 2k words up and up to 2k ceil(log2 P) words down: 4k ceil(log2 P) on the critical path, which has 2 ceil(log2 P)
messages, and ceil(log2 P) small ones for the count. Returns k entries, on any number of ranks.

The published residual rule gives back to a rank what it selected and the result lacks. A partial sum that was dropped
in the tree at an index that another branch carried to the root is then lost for good. By default the rank that drops
a partial sum keeps it instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparse_mpi import wire
from sparse_mpi.algorithms.base import Bound, Reduction, rounds
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.select import Selector
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, concatenate, contains, merge, subtract, take, truncate


@dataclass(frozen=True)
class GTopk:
    """Tree of top-k merges.

    Args:
        selector: picks the entries to send.
        residual: ``"keeper"`` (whoever drops a partial sum keeps it; nothing is lost) or ``"published"``.
    """

    selector: Selector = Threshold()
    residual: str = "keeper"

    def __post_init__(self) -> None:
        if self.residual not in ("keeper", "published"):
            raise ValueError(f"residual must be 'keeper' or 'published', got {self.residual!r}")

    @property
    def conserves(self) -> bool:
        """The published residual rule loses mass."""
        return self.residual == "keeper"

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """The selector's state."""
        return self.selector.init(layout, k)

    def reduce(self, acc: Array, k: int, comm: Comm, state: Any) -> tuple[Reduction, Any]:
        """``sent`` is this rank's selection minus the partial sums it dropped."""
        selected, state = self.selector.select(acc, k, state)
        carried, dropped = _climb(truncate(selected, k), k, comm)
        total = wire.decode(comm.bcast(wire.encode(carried)), len(acc), acc.dtype)
        if self.residual == "published":
            return Reduction(total, take(selected, contains(total, selected.indices))), state
        return Reduction(total, subtract(truncate(selected, k), dropped)), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """The root sends k pairs down in every round; nobody sends more."""
        down = rounds(ranks)
        return Bound(k * down, 0, 2 * down, 8 * down)


def _climb(carried: SparseVector, k: int, comm: Comm) -> tuple[SparseVector, SparseVector]:
    """One rank's way up the tree: the sum it holds in the end (at rank 0, the result) and all that it dropped.

    In round j, a rank whose lowest set bit is j hands its sum to the rank 2^j below it and is done.
    """
    n, dtype = carried.size, carried.values.dtype
    dropped = [take(carried, slice(0, 0))]
    gap = 1
    while gap < comm.size:
        rows = wire.encode(carried)
        if comm.rank & gap:
            comm.sendrecv(rows, dest=comm.rank - gap, source=None)
            return take(carried, slice(0, 0)), concatenate(dropped)
        if comm.rank + gap < comm.size:
            received = comm.sendrecv(rows, dest=None, source=comm.rank + gap)
            both = merge(concatenate([carried, wire.decode(received, n, dtype)]))
            carried = truncate(both, k)
            dropped.append(take(both, ~contains(carried, both.indices)))
        gap *= 2
    return carried, concatenate(dropped)
