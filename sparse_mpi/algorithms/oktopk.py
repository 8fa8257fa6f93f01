"""Ok-Topk (Li & Hoefler, PPoPP'22, DOI 10.1145/3503221.3508399): balanced split-and-reduce, then a balanced allgather.

Costs at most 6k(P-1)/P words a rank if k is 81 P or more, 4k(P-1)/P as a rule, and P - 1 + 2 ceil(log2 P) messages in a
steady step: the split, an allgather of counts, an allgather of results. Unpredicted thresholds add a few small
allreduces, balancing up to P - 1 messages. A rank that selects nothing in its own region may send 2k/P words more. With
a radix r the P - 1 messages are about (r - 1) log P / log r, and forwarding adds volume: at P = 1,024 and r = 32, 62
messages and 6k words at most densities. Returns the 0.9k to k largest entries of the sum of all selections, up to
rounding by the wire format.

Departs from the published program: selection is exact in every step (`select/threshold.py`); the global threshold is
found by counting in every step (`global_threshold.py`), not by gathering everything in some; regions are cut at
quantiles of all selections, not means of ranks' quantiles, follow the ranks' loads from step to step without a message,
and are redrawn when that does not suffice; the result never exceeds k entries, ties included. `published.py` has the
program's thresholds, periods and trigger, without its faults: an overloaded last region, indices as float32, results
never balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits, levels_field
from sparse_mpi.algorithms.exchange import (
    added_up_loosely,
    allgather_bound,
    balance,
    draw_regions,
    imbalance_limit,
    overloaded,
    reduction_load,
    refitted,
    samples,
    split,
    stages,
    uneven,
)
from sparse_mpi.algorithms.global_threshold import Counted
from sparse_mpi.arrays import Array, index_dtype, to_host
from sparse_mpi.checks import check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected, most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, regions_of, subtract, where
from sparse_mpi.states import ranged
from sparse_mpi.wire import Coo, SizeBound, Wire


@dataclass(frozen=True)
class _OkTopkState:
    """State between steps. `selection` differs between ranks; the rest is replicated."""

    selection: Any  # the selector's state
    threshold: Any = ranged(replicated=True)  # the state of the rule that finds the global threshold
    # (P + 1,) int64: region q, rank q's own, is [boundaries[q], boundaries[q + 1])
    boundaries: np.ndarray = ranged("[0, n]", lengths=("P + 1",), replicated=True)
    age: int = ranged("[0, many)", 0, replicated=True)  # steps since the boundaries were drawn
    stale: bool = ranged(default=True, replicated=True)  # True: the next step must redraw them


@dataclass(frozen=True)
class OkTopk(Algorithm):
    """Ok-Topk (Li & Hoefler, PPoPP'22): about k entries at a volume that does not grow with the number of ranks.

    Args:
        selector: picks the entries to send.
        period: steps after which regions are redrawn even if balanced (tau in the paper).
        trigger: results move between ranks when one has more than this many times the results expected by chance (the
            mean, if large), see `exchange.imbalance_limit`. Regions are redrawn for the next step when one rank added
            up this many times the mean, and at least twice the mean. The paper's 4 times the mean alone would allow
            8k(P-1)/P words.
        wire: the message format.
        radix: ranks split and reduce in ceil(log P / log radix) stages of at most radix - 1 messages each, in which
            entries are forwarded and added up on the way. None: in one stage of P - 1 messages, the least volume.
        levels: 2 sums densely inside the nodes, and reduces between them; 1 does not. None: 2 where there are several
            nodes with several ranks each, see `TwoLevel`.
    """

    selector: Selector = Threshold()
    period: int = 64
    trigger: float = 1.5
    wire: Wire = Coo()
    radix: int | None = None
    levels: int | None = levels_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("period", self.period, 1, "step")
        check_range("trigger", self.trigger, "[1, inf)", "1.5 times the mean is usual")
        if self.radix is not None:
            check_whole("radix", self.radix, 2, "groups a stage", "None makes a single stage")

    @cached_property
    def traits(self) -> Traits:
        return Traits(lossless=self.wire.lossless, accumulates=True, in_default_plans=True)

    @cached_property
    def _rule(self) -> Any:
        return Counted() if self.wire.lossless else Counted(mantissa=7)

    def init(self, layout: Layout, k: int, ranks: int) -> _OkTopkState:
        return _OkTopkState(self.selector.init(layout, k), self._rule.init(), np.zeros(ranks + 1, np.int64))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: _OkTopkState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, _OkTopkState]:
        """Sum all ranks' selections, and return about the k largest sums on every rank.

        ``total`` has 0.9k to k entries, fewer only if the sums have. ``sent`` is this rank's selection, 0 where
        ``total`` has no entry.
        """
        n, dtype = len(acc), acc.dtype

        # Select by the local threshold: about k entries of this rank's acc.
        selected, selection = self.selector.select(acc, k, state.selection, add)

        # Alone, a rank owns all that it selects, and may return k entries.
        if comm.size == 1 and self.wire.lossless and len(selected.indices) <= k:
            total = SparseVector(selected.indices, selected.values.copy(), n)
            alone = _OkTopkState(selection, state.threshold, state.boundaries, state.age, state.stale)
            return Reduction(total, selected), alone

        # Redraw the regions when they are due, or when the step before found them unbalanced.
        boundaries, age = state.boundaries, state.age + 1
        if state.stale or age > self.period or (boundaries[0], boundaries[-1]) != (0, n):
            boundaries, age = draw_regions(selected, k, comm), 1

        # Split and reduce: each rank gets the sum of all selections in the region that it owns.
        came = split(selected, boundaries, self.radix, self.wire, comm)
        sums, chosen = added_up_loosely(came, boundaries[comm.rank : comm.rank + 2], self.wire)

        # Threshold: about k of all sums reach the global threshold, and they are the result.
        load, regions = reduction_load(came.added, k), regions_of(boundaries)
        results, counts, loads, threshold = self._rule.cut(sums, k, state.threshold, comm, load, chosen=chosen)

        # Balance: where one rank has far more results than the mean, share them out equally before they are gathered.
        each = counts.tolist()
        if max(each) > imbalance_limit(sum(each) / len(each), self.trigger):
            results, counts, regions = balance(results, counts, regions, comm)

        # Allgather: every rank gets all results, in the order of the regions.
        packed = self.wire.pack(results, counts[comm.rank : comm.rank + 1], regions[comm.rank : comm.rank + 1])
        gathered, lengths = comm.allgatherv(packed.buffer, self.wire.lengths_of(counts, regions, n, dtype))
        total = self.wire.unpack(gathered, lengths, regions, n, dtype)

        # Owed: selected entries that total lacks stay in this rank's residual.
        sent = where(came.contributed, total)
        if not self.wire.lossless:
            sent = subtract(sent, subtract(results, packed.vector))

        # Adapt: regions follow the loads of all ranks. Where one rank has far too much, its load says too little, and
        # regions are redrawn in the next step, unless they have just been drawn.
        stale = age > 1 and overloaded(loads, k, self.trigger)
        if not stale and uneven(loads):
            boundaries = refitted(boundaries, loads, to_host(total.indices).astype(np.int64))
        return Reduction(total, sent), _OkTopkState(selection, threshold, boundaries, age, stale)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return 0.9 * fewest_selected(self.selector, k), k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in a step: the paper's 6k(P-1)/P words, or more if k is below 81 P.

        These are about k(P-1)/P pairs each in the split, in balancing and in the allgather; k/P pairs more if a rank
        selects nothing in its own region, and whole entries if k < P. With a radix the bound assumes disjoint
        selections in one region.
        """
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        most = most_selected(self.selector, layout, k)
        exchange = stages(ranks, self.radix)
        n = layout.size
        result, values, messages, control = self._rule.bound(min(n, most * ranks), k, ranks)
        split = [self.wire.max_size(min(n, most * selections), n, number) for number, selections in exchange]
        sent = sum(number for number, _ in exchange)
        gathered = allgather_bound(lambda entries: self.wire.max_size(entries, n), result, ranks, self.trigger)
        return Bound.of(
            sum(split, SizeBound(values=values)) + gathered,
            sent + ranks - 1 + 2 * rounds(ranks) + messages,
            control + (samples(k, ranks) + 3) * index_dtype(n).itemsize * (ranks - 1),
        )
