"""SparDL (Zhao et al., ICDE'24): a reduce-scatter that prunes on its way, by reverse Bruck, then a Bruck allgather.

Costs at most 5k(P-1)/P words a rank and 4k(P-1)/P as a rule, in 2 ceil(log2 P) messages, none for counts. Returns about
k entries, at most k.

Every rank owns a region. The first half takes ceil(log2 P) messages, each of half the last one's distance, with other
owners' entries; the receiver adds them. A message is pruned to its share of k. In the second half the owners' sums
spread the other way round. A pruned entry stays in the residual of the rank that prunes it ("global residual
collection"), so nothing is lost.

Departs from the paper: regions are block-cyclic, not contiguous, because large entries stand together, and owners take
turns, so that residuals of different ranks meet. A message is pruned as a whole, not block by block, and may be
somewhat longer than its share; a region gets more of the result than its share if its sums reach the last result's
smallest magnitude. Teams of ranks ("SAG"), which communicate less often, are not implemented.

`SparDL.published` is the released program: each rank selects its share of k from every region, regions are contiguous
and pruned one by one, and a rank takes back selected entries at indices that the result lacks. Entries pruned on the
way at an index of the result are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from sparse_mpi.algorithms import bruck
from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.partition import Partition
from sparse_mpi.arrays import Array, magnitude_bits, namespace
from sparse_mpi.checks import check_choice, check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.comm.counting import received as came
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import (
    Layout,
    SparseVector,
    concatenate,
    contains,
    equal_boundaries,
    merge,
    regions_of,
    split_counts,
    subtract,
    take,
    truncate,
    truncate_least,
    where,
)
from sparse_mpi.states import ranged
from sparse_mpi.wire import Coo, SizeBound, Wire

PRUNES = ("threshold", "block")
SELECTIONS = ("global", "block")
RESIDUALS = ("merger", "published")
CONTIGUOUS = 1 << 62  # elements; a block as long makes regions contiguous


@dataclass(frozen=True)
class _SparDLState:
    """State between steps. `selection` differs between ranks; the rest is replicated."""

    selection: Any  # the selector's state
    # magnitude bits of the smallest entry of the last result, 0 if it had fewer than k
    threshold: int = ranged("[0, bits)", 0, replicated=True)
    turn: int = ranged("[0, P)", 0, replicated=True)  # the rank that owns the first block


@dataclass(frozen=True)
class SparDL(Algorithm):
    """Sparse allreduce of k entries in the fewest messages.

    Args:
        selector: picks the entries to send.
        prune: ``"threshold"`` (a message keeps its largest entries, an owner its sums likely among the k largest) or
            ``"block"`` (the paper: every region is cut to its share of k).
        slack: most entries of a message over its share of k; not for ``"block"``.
        block: neighbouring elements of one owner.
        wire: the message format.
        selection: ``"global"`` (the selector picks k entries of all) or ``"block"`` (a share of k from each of P equal
            ranges, passed as rows to a selector that works row by row, for example ``AllDim()``).
        residual: ``"merger"`` (a pruned entry stays with the rank that prunes it; nothing is lost) or ``"published"``
            (a rank keeps its selected entries at indices that the result lacks; entries pruned elsewhere are lost).
    """

    selector: Selector = Threshold()
    prune: str = "threshold"
    slack: float = 1.25
    block: int = 64
    wire: Wire = Coo()
    selection: str = "global"
    residual: str = "merger"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("prune", self.prune, PRUNES)
        check_choice("selection", self.selection, SELECTIONS)
        check_choice("residual", self.residual, RESIDUALS)
        if self.selection == "block" and not self.selector.patterned:
            raise TypeError(f"selector must be alldim or interleaved with selection='block', got {self.selector!r}")
        check_range("slack", self.slack, "[1, inf)", "1.25 times the share is usual")
        check_whole("block", self.block, 1, "element", "64 is usual")

    @cached_property
    def traits(self) -> Traits:
        merger = self.residual == "merger"
        return Traits(conserves=merger, delegates_residual=merger, lossless=self.wire.lossless, accumulates=True)

    def init(self, layout: Layout, k: int, ranks: int) -> _SparDLState:
        return _SparDLState(self.selector.init(self._rows(layout, ranks), k))

    def _rows(self, layout: Layout, ranks: int) -> Layout:
        if self.selection == "global":
            return layout
        widths = np.diff(equal_boundaries(layout.size, min(ranks, layout.size)))
        return Layout(tuple((1, width) for width in widths.tolist()))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: _SparDLState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, _SparDLState]:
        """Return at most k entries; ``sent`` is this rank's selection less what it pruned."""
        # Select: each rank its largest entries.
        selected, selection = self.selector.select(acc, k, state.selection, add)
        # Reduce-scatter: entries go to the owners of their blocks, and are added and pruned on their way. Region d is
        # that of the d-th rank after this one: so a message is contiguous, and starts at 0 for its receiver.
        partition = Partition(len(acc), comm.size, self.block, state.turn - comm.rank)
        starts = partition.boundaries
        summed, cut = self._reduce_scatter(partition.permute(selected), starts, k, comm)
        # Allgather the owners' largest sums: they are the total, numbered alike on all ranks.
        chosen = truncate(summed, self._worthwhile(summed, k, int(starts[1]), state.threshold))
        alike = replace(partition, shift=state.turn)
        total = truncate(alike.restore(self._allgather(chosen, comm.rank, alike.boundaries, comm)), k)

        # Owed by the published rule: selected entries that the result lacks.
        if self.residual == "published":
            return Reduction(total, where(selected, total)), self._next(total, k, comm, selection, state)
        # Owed by ours: entries that this rank has cut, on the way or as owner.
        summed = partition.restore(summed)
        kept = take(total, contains(summed, total.indices))
        dropped = concatenate([partition.restore(cut), self._lacking(kept, summed)])
        sent = subtract(selected, merge(dropped))
        return Reduction(total, sent), self._next(total, k, comm, selection, state)

    def _next(self, total: SparseVector, k: int, comm: Comm, selection: object, state: _SparDLState) -> _SparDLState:
        return _SparDLState(selection, int(truncate_least(total, k)[1]), (state.turn + 1) % comm.size)

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        fewest, _ = super().selected_band(layout, k, ranks)
        return fewest, most_selected(self.selector, self._rows(layout, ranks), k)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        widest = Partition(layout.size, ranks, self.block).widest
        entries, width = (ranks - 1) * self._most(k, widest, layout.size), (ranks - 1) * widest
        levels = rounds(ranks)
        there, back = self.wire.max_size(entries, width, levels), self.wire.max_size(entries, width, ranks - 1)
        heads = SizeBound(extra=bruck.COUNT_BYTES * (ranks - 1) + bruck.MAX_ROW_BYTES * levels)
        return Bound.of(there + back + heads, 2 * levels, control=0)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return 1, k

    def _most(self, k: int, width: int, size: int) -> int:
        return max(1, ceil((1.0 if self.prune == "block" else self.slack) * k * width / size))

    def _worthwhile(self, summed: SparseVector, k: int, width: int, threshold: int) -> int:
        """Return how many sums an owner spreads: its share of k, or all that may be in the result."""
        share = max(1, -(-k * width // summed.size))
        reached = int(namespace(summed.values).count_nonzero(magnitude_bits(summed.values) >= threshold))
        return min(max(share, reached), self._most(k, width, summed.size))

    def _reduce_scatter(
        self, held: SparseVector, starts: np.ndarray, k: int, comm: Comm
    ) -> tuple[SparseVector, SparseVector]:
        """Return all ranks' sum in this rank's region, and the entries it pruned; indices may repeat."""
        # A rank holds regions 0 to stop - 1, and sends regions gap and up to the rank gap away, which is nearer to them
        cuts = [take(held, slice(0, 0))]
        stop, gap = comm.size, 1 << (comm.size - 1).bit_length() >> 1
        while gap:
            # Cut off the regions that are nearer to another rank, and prune them to their share of k.
            near = int(np.asarray(split_counts(held, starts[[0, gap]]))[0])
            leaving = take(held, slice(near, None))
            kept = _moved(self._pruned(leaving, starts[gap : stop + 1], k), -starts[gap])
            # Send them there; whoever prunes and rounds keeps the difference.
            packed = self.wire.pack(kept, np.array([kept.nnz]), np.array([[0, starts[stop] - starts[gap]]]))
            cuts.append(self._lacking(_moved(packed.vector, starts[gap]), leaving))
            rows = came(comm.sendrecv(packed.buffer, (comm.rank + gap) % comm.size, (comm.rank - gap) % comm.size))
            region = np.array([[0, starts[stop - gap]]])
            received = self.wire.unpack(rows, np.array([len(rows)]), region, held.size, held.values.dtype)
            # Add the message to the remaining regions.
            held = merge(concatenate([take(held, slice(0, near)), received]))
            stop, gap = gap, gap // 2
        return held, concatenate(cuts)

    def _allgather(self, chosen: SparseVector, own: int, boundaries: np.ndarray, comm: Comm) -> SparseVector:
        """Return all owners' entries, numbered alike on all ranks: region q is owner q's, ``own`` this rank's."""
        # Messages are forwarded unchanged, so that rounded values have the same bytes everywhere
        regions = regions_of(boundaries)
        chosen = _moved(chosen, boundaries[own])
        packed = self.wire.pack(chosen, np.array([chosen.nnz]), regions[own : own + 1])
        rows, counts = bruck.allgather(packed.buffer, comm)
        return self.wire.unpack(rows, counts, np.roll(regions, -own, axis=0), chosen.size, chosen.values.dtype)

    def _pruned(self, leaving: SparseVector, starts: np.ndarray, k: int) -> SparseVector:
        edges = starts if self.prune == "block" else starts[[0, -1]]
        parts, at = [], 0
        counts = np.asarray(split_counts(leaving, edges))
        for count, width in zip(counts.tolist(), np.diff(edges).tolist(), strict=True):
            parts.append(truncate(take(leaving, slice(at, at + count)), self._most(k, width, leaving.size)))
            at += count
        return concatenate(parts)

    def _lacking(self, after: SparseVector, before: SparseVector) -> SparseVector:
        return take(before, ~contains(after, before.indices)) if self.wire.lossless else subtract(before, after)


def _moved(vector: SparseVector, by: int) -> SparseVector:
    return vector._replace(indices=vector.indices + vector.indices.dtype.type(by))
