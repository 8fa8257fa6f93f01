"""Ok-Topk (Li & Hoefler, PPoPP'22, DOI 10.1145/3503221.3508399): balanced split-and-reduce, then a balanced allgather.

Costs at most 6k(P-1)/P words a rank and 4k(P-1)/P as a rule, and P - 1 + 2 ceil(log2 P) messages in a steady step: the
split, an allgather of counts, an allgather of results. Steps whose threshold was not foreseen search for it with a few
small allreduces more, steps that balance send up to P - 1 messages more. A rank none of whose selection lies in its own
region may send 2k/P words more. With a radix r the P - 1 messages are about (r - 1) log P / log r, and forwarding adds
to the volume: at P = 1,024 and r = 32, 62 messages and 6k words at most densities.
Returns between 0.9k and k entries: the largest of the sum of all selections, up to what the wire format rounds.

Where this departs from the published program: selection is exact in every step (`select/threshold.py`); the global
threshold is found by counting in every step (`global_threshold.py`) instead of by gathering everything in some
(`stale_threshold.py`, for comparison); regions are redrawn as soon as they have become unbalanced; the result never
exceeds k entries, ties included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi.algorithms.base import Bound, Reduction, rounds
from sparse_mpi.algorithms.oktopk.global_threshold import Counted
from sparse_mpi.algorithms.oktopk.regions import balance, draw_regions
from sparse_mpi.algorithms.oktopk.split_reduce import split_reduce, stages
from sparse_mpi.algorithms.oktopk.stale_threshold import Stale
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.renumbered import Rotated
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, contains, subtract, take
from sparse_mpi.wire import Coo, Wire, regions_of

RESIDUALS = ("sender", "owner")
REFRESHES = ("histogram", "exact")


@dataclass(frozen=True)
class OkTopkState:
    """What is carried from step to step, the same on all ranks but for the selector's part."""

    selection: Any  # the selector's state
    threshold: Any  # the state of the rule that finds the global threshold
    boundaries: np.ndarray  # (P + 1,) int64: region q, rank q's own, is [boundaries[q], boundaries[q + 1])
    age: int = 0  # steps since the boundaries were drawn
    stale: bool = True  # whether they must be drawn anew
    turn: int = 0  # the rank that owns the first region, where ownership rotates


@dataclass(frozen=True)
class OkTopk:
    """Sparse allreduce of about k entries at a volume that does not grow with the number of ranks.

    Args:
        selector: picks the entries to send.
        period: steps after which regions are redrawn even if they are still balanced (tau in the paper).
        trigger: results move between ranks, and regions are redrawn for the next step, when one rank holds more than
            this many times the mean. The paper waits for 4, which alone would allow 8k(P-1)/P words.
        residual: who keeps what does not make it into the result. ``"sender"``, the paper's rule: every rank keeps what
            it selected in vain. ``"owner"``: the owner of a region keeps the sum, and ownership moves on by one rank in
            every step, so that what is kept in one place meets what others have.
        wire: the message format.
        radix: ranks split and reduce in ceil(log P / log radix) stages of at most radix - 1 messages each, in which
            entries are forwarded and added up on the way. None: in one stage of P - 1 messages, which sends least.
        refresh: how the global threshold is found. ``"histogram"``: by counting, in every step. ``"exact"``, the
            paper's rule: every ``threshold_period`` steps all reduced entries are gathered on all ranks, and in between
            a stale threshold is nudged. It sends more, and its results may exceed k: it is here to be compared with.
        threshold_period: steps between exact thresholds (tau' in the paper).
    """

    selector: Selector = Threshold()
    period: int = 64
    trigger: float = 1.5
    residual: str = "sender"
    wire: Wire = Coo()
    radix: int | None = None
    refresh: str = "histogram"
    threshold_period: int = 32

    conserves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period must be at least 1 step, got {self.period}")
        if self.trigger < 1:
            raise ValueError(f"trigger must be at least 1 (times the mean), got {self.trigger}")
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual must be one of {', '.join(RESIDUALS)}, got {self.residual!r}")
        if self.radix is not None and self.radix < 2:
            raise ValueError(f"radix must be at least 2 groups a stage, got {self.radix}; None makes a single stage")
        if self.refresh not in REFRESHES:
            raise ValueError(f"refresh must be one of {', '.join(REFRESHES)}, got {self.refresh!r}")
        if self.threshold_period < 1:
            raise ValueError(f"threshold_period must be at least 1 step, got {self.threshold_period}")

    @property
    def _rule(self) -> Counted | Stale:
        """How the global threshold is found."""
        if self.refresh == "exact":
            return Stale(self.threshold_period)
        return Counted() if self.wire.lossless else Counted(mantissa=7)

    def init(self, layout: Layout, k: int, ranks: int) -> OkTopkState:
        """No regions and no threshold yet."""
        return OkTopkState(self.selector.init(layout, k), self._rule.init(), np.zeros(ranks + 1, np.int64))

    def reduce(self, acc: Array, k: int, comm: Comm, state: OkTopkState) -> tuple[Reduction, OkTopkState]:
        """``sent`` is this rank's selection where the result has an entry, or all of it less what it keeps as owner."""
        n, dtype = len(acc), acc.dtype
        selected, selection = self.selector.select(acc, k, state.selection)
        ring = Rotated(comm, state.turn)
        boundaries, age = state.boundaries, state.age + 1
        if state.stale or age > self.period:
            boundaries, age = draw_regions(selected, comm), 1

        summed, sent = split_reduce(selected, boundaries, self.radix, self.wire, ring)
        chosen, counts, threshold = self._rule.cut(summed.values, k, state.threshold, ring)
        held, regions = take(summed, chosen), regions_of(boundaries)
        unbalanced = bool(counts.max() * comm.size > self.trigger * counts.sum())
        if unbalanced:
            held, counts, regions = balance(held, counts, regions, ring)
        packed = self.wire.pack(held, counts[ring.rank : ring.rank + 1], regions[ring.rank : ring.rank + 1])
        rows, counts = ring.allgatherv(packed.buffer, self.wire.lengths_of(counts, regions, n, dtype))
        total = self.wire.unpack(rows, counts, regions, n, dtype)

        turn = state.turn
        if self.residual == "owner":
            sent, turn = subtract(sent, take(summed, ~chosen)), (turn + 1) % comm.size
        else:
            sent = take(sent, contains(total, sent.indices))
        if not self.wire.lossless:
            sent = subtract(sent, subtract(held, packed.vector))
        return Reduction(total, sent), OkTopkState(selection, threshold, boundaries, age, unbalanced, turn)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """About k(P-1)/P pairs each in the split, in balancing and in the allgather: the paper's 6k(P-1)/P words.

        k/P pairs more where none of a rank's selection lies in its own region; whole entries where k < P. With a radix,
        as if no two ranks had selected the same entry, and all in one region. With refresh="exact", as if all reduced
        entries were in the result, in every step and in the one that gathers them too.
        """
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        most = most_selected(self.selector, layout, k)
        exchange = stages(ranks, self.radix)
        result, values, messages, control = self._rule.bound(min(layout.size, most * ranks), k, ranks)
        moved_and_gathered = max(result / ranks + -(-result // ranks), min(self.trigger, ranks) * result / ranks)
        pairs = sum(min(layout.size, most * selections) for _, selections in exchange)
        sent = sum(messages for messages, _ in exchange)
        return Bound(
            pairs + moved_and_gathered * (ranks - 1),
            values,
            sent + ranks - 1 + 3 * rounds(ranks) + messages,
            control + 16 * ranks,
            self.wire.overhead() * (sent + ranks - 1),
        )
