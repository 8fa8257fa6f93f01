"""TopkDSA (SparCML: Renggli et al., SC'19): sparse reduce-scatter, then allgather, dense where that is smaller.

Region q of P equal widths belongs to rank q, which adds up what all ranks selected there. Costs 4k(P-1)/P words when
the selections coincide, up to (2k + n)(P-1)/P when they do not, and P - 1 + ceil(log2 P) messages a rank, and
ceil(log2 P) small ones for the counts. Returns the sum of all selections: the same as TopkA, by another way.

Where latency matters more than volume, ``exchange="doubling"`` adds up by recursive doubling: k(P-1) pairs in
ceil(log2 P) messages, two more where P is no power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import wire
from sparse_mpi.algorithms.base import Bound, Reduction, rounds
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import (
    Layout,
    SparseVector,
    concatenate,
    equal_boundaries,
    merge,
    split_counts,
)


@dataclass(frozen=True)
class TopkDSA:
    """Split by region, add, allgather.

    Args:
        selector: picks the entries to send.
        exchange: ``"split"``, or ``"doubling"`` for few entries.
    """

    selector: Selector = Threshold()
    exchange: str = "split"

    conserves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.exchange not in ("split", "doubling"):
            raise ValueError(f"exchange must be 'split' or 'doubling', got {self.exchange!r}")

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """The selector's state."""
        return self.selector.init(layout, k)

    def reduce(self, acc: Array, k: int, comm: Comm, state: Any) -> tuple[Reduction, Any]:
        """``sent`` is this rank's selection."""
        selected, state = self.selector.select(acc, k, state)
        if self.exchange == "doubling":
            return Reduction(_double(selected, comm), selected), state
        boundaries = equal_boundaries(len(acc), comm.size)
        rows, _ = comm.alltoallv(wire.encode(selected), split_counts(selected, boundaries))
        region = merge(wire.decode(rows, len(acc), acc.dtype))
        message = _encode_region(region, boundaries[comm.rank], boundaries[comm.rank + 1])
        gathered, counts = comm.allgatherv(message)
        return Reduction(_decode_regions(gathered, counts, boundaries, acc), selected), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """The selection in the split, where none of it is the rank's own; then all selections, or a dense region."""
        most = most_selected(self.selector, layout, k)
        if self.exchange == "doubling":
            core, folded = _core(ranks)
            return Bound(most * (2 * (core - 1) + ranks if folded else ranks - 1), 0, rounds(ranks) + 1, 0)
        width = -(-layout.size // ranks)
        pairs, values = (most * ranks, 0) if 2 * most * ranks < width else (0, width)
        pairs = most * (ranks > 1) + pairs * (ranks - 1)
        return Bound(pairs, values * (ranks - 1), ranks - 1 + 2 * rounds(ranks), 4 * (ranks - 1))


def _core(ranks: int) -> tuple[int, int]:
    """The largest power of two of ranks there are, and how many ranks are left over."""
    core = 1 << (ranks.bit_length() - 1)
    return core, ranks - core


def _double(held: SparseVector, comm: Comm) -> SparseVector:
    """The sum on every rank: in round j, pairs of ranks 2^j apart swap what they hold and both add it up.

    Ranks beyond the power of two hand what they have to a partner below first and get the sum in the end.
    """
    n, dtype = held.size, held.values.dtype
    core, folded = _core(comm.size)
    rank = comm.rank

    def swap(dest: int | None, source: int | None) -> SparseVector:
        rows = comm.sendrecv(wire.encode(held), dest, source)
        return held if rows is None else wire.decode(rows, n, dtype)

    if rank >= core:
        swap(rank - core, None)
        return swap(None, rank - core)
    if rank < folded:
        held = merge(concatenate([held, swap(None, rank + core)]))
    gap = 1
    while gap < core:
        other = swap(rank ^ gap, rank ^ gap)
        held = merge(concatenate([held, other] if rank & gap == 0 else [other, held]))
        gap *= 2
    if rank < folded:
        swap(rank + core, None)
    return held


def _encode_region(region: SparseVector, start: int, stop: int) -> Array:
    """The region's sum as pairs or as dense values, whichever is smaller: ``(m,)`` wire units.

    Pairs are sent only if they are strictly smaller, so a message as long as the dense region *is* the dense region.
    """
    width, values = int(stop - start), region.values
    pairs = wire.encode(region)
    if pairs.nbytes < width * values.itemsize:
        return pairs.reshape(-1)
    dense = namespace(values).zeros(width, values.dtype)
    dense[region.indices - start] = values
    return dense.view(pairs.dtype)


def _decode_regions(gathered: Array, counts: np.ndarray, boundaries: np.ndarray, like: Array) -> SparseVector:
    """All regions one after the other; of a dense region its non-zero elements."""
    xp, n, dtype = namespace(like), len(like), like.dtype
    units = wire.pair_bytes(n, dtype) // gathered.itemsize
    is_dense = counts * gathered.itemsize == np.diff(boundaries) * dtype.itemsize
    if not is_dense.any():
        return wire.decode(gathered.reshape(-1, units), n, dtype)
    parts, at = [], 0
    for start, count, dense in zip(boundaries, counts, is_dense, strict=False):
        message = gathered[at : at + count]
        at += count
        if dense:
            values = xp.ascontiguousarray(message).view(dtype)
            nonzero = xp.flatnonzero(values)
            parts.append(SparseVector((nonzero + start).astype(index_dtype(n)), values[nonzero], n))
        else:
            parts.append(wire.decode(message.reshape(-1, units), n, dtype))
    return concatenate(parts)
