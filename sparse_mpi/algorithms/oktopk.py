"""Ok-Topk (Li & Hoefler, PPoPP'22, DOI 10.1145/3503221.3508399): balanced split-and-reduce, then a balanced allgather.

Costs at most 6k(P-1)/P words a rank and 4k(P-1)/P as a rule, P + ceil(log2 P) messages, P more in steps that balance,
and a few small allreduces. A rank none of whose selection lies in its own region may send 2k/P words more.
Returns between 0.9k and k entries: the largest of the sum of all selections.

Where this departs from the published program: selection is exact in every step (`select/threshold.py`); the global
threshold is found by counting in every step instead of by gathering everything in some (`global_threshold.py`); regions
are redrawn as soon as they have become unbalanced; the result never exceeds k entries, ties included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi.algorithms.base import Bound, Reduction, rounds
from sparse_mpi.algorithms.global_threshold import GlobalThreshold, most_rounds, probes_per_round, search
from sparse_mpi.algorithms.rotated import Rotated
from sparse_mpi.arrays import Array, namespace, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.kernels.base import magnitude_bits
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, contains, merge, split_counts, subtract, take
from sparse_mpi.wire import Coo, Wire, decode, encode, regions_of

RESIDUALS = ("sender", "owner")


@dataclass(frozen=True)
class OkTopkState:
    """What is carried from step to step, the same on all ranks but for the selector's part."""

    selection: Any  # the selector's state
    boundaries: np.ndarray  # (P + 1,) int64: region q, rank q's own, is [boundaries[q], boundaries[q + 1])
    threshold: int = 0  # magnitude bits of the last global threshold
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
    """

    selector: Selector = Threshold()
    period: int = 64
    trigger: float = 1.5
    residual: str = "sender"
    wire: Wire = Coo()

    conserves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period must be at least 1 step, got {self.period}")
        if self.trigger < 1:
            raise ValueError(f"trigger must be at least 1 (times the mean), got {self.trigger}")
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual must be one of {', '.join(RESIDUALS)}, got {self.residual!r}")

    def init(self, layout: Layout, k: int, ranks: int) -> OkTopkState:
        """No regions and no threshold yet."""
        return OkTopkState(self.selector.init(layout, k), np.zeros(ranks + 1, np.int64))

    def reduce(self, acc: Array, k: int, comm: Comm, state: OkTopkState) -> tuple[Reduction, OkTopkState]:
        """``sent`` is this rank's selection where the result has an entry, or all of it less what it keeps as owner."""
        n, dtype = len(acc), acc.dtype
        selected, selection = self.selector.select(acc, k, state.selection)
        ring = Rotated(comm, state.turn)
        boundaries, threshold, age = state.boundaries, state.threshold, state.age + 1
        if state.stale or age > self.period:
            boundaries, guess = draw_regions(selected, comm)
            threshold, age = threshold or guess, 1

        regions = regions_of(boundaries)
        split = self.wire.pack(selected, split_counts(selected, boundaries), regions)
        rows, counts = ring.alltoallv(split.rows, split.counts)
        summed = merge(self.wire.unpack(rows, counts, np.tile(regions[ring.rank], (ring.size, 1)), n, dtype))

        found = search(summed.values, k, threshold, comm)
        chosen, counts = cut(summed, found, k, ring)
        kept = take(summed, chosen)
        unbalanced = bool(counts.max() * comm.size > self.trigger * counts.sum())
        held, counts, regions = balance(kept, counts, regions, ring) if unbalanced else (kept, counts, regions)
        packed = self.wire.pack(held, counts[ring.rank : ring.rank + 1], regions[ring.rank : ring.rank + 1])
        rows, counts = ring.allgatherv(packed.rows, self.wire.rows_of(counts, regions, n, dtype))
        total = self.wire.unpack(rows, counts, regions, n, dtype)

        sent, turn = split.vector, state.turn
        if self.residual == "owner":
            sent, turn = subtract(sent, take(summed, ~chosen)), (turn + 1) % comm.size
        else:
            sent = take(sent, contains(total, sent.indices))
        if not self.wire.lossless:
            sent = subtract(sent, subtract(held, packed.vector))
        return Reduction(total, sent), OkTopkState(selection, boundaries, found.bits, age, unbalanced, turn)

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """About k(P-1)/P pairs each in the split, in balancing and in the allgather: the paper's 6k(P-1)/P words.

        k/P pairs more where none of a rank's selection lies in its own region; whole entries where k < P.
        """
        most = most_selected(self.selector, layout, k)
        pairs = most + most * (ranks - 1) / ranks + -(-k // ranks) * (ranks - 1)
        searches = most_rounds(k)
        messages = 2 * (ranks - 1) + (4 + 2 * searches) * rounds(ranks)
        control = 16 * ranks + 8 * (ranks - 1) + 16 * (probes_per_round(k) + 1) * searches
        extra = 2 * self.wire.overhead() * (ranks - 1)
        return Bound(pairs, 0, messages, control, extra) if ranks > 1 else Bound(0, 0, 0, 0)


def draw_regions(selected: SparseVector, comm: Comm) -> tuple[np.ndarray, int]:
    """Boundaries ``(P + 1,)`` int64 that cut all selections about equally, and a first guess at the global threshold.

    Every rank proposes what would cut its own selection into P equal counts; the mean of the proposals is taken.
    """
    xp = namespace(selected.indices)
    cuts = xp.arange(1, comm.size) * selected.nnz // comm.size
    proposal = np.empty(comm.size, np.int64)
    proposal[:-1] = to_host(selected.indices[cuts])
    proposal[-1] = int(magnitude_bits(selected.values).min()) // comm.size  # 63 bits: their sum would not fit
    summed = comm.allreduce(proposal, control=True)
    return np.concatenate([[0], summed[:-1] // comm.size, [selected.size]]), int(summed[-1])


def cut(summed: SparseVector, found: GlobalThreshold, k: int, ring: Rotated) -> tuple[Array, np.ndarray]:
    """Which of this rank's entries reach the threshold, a mask, and how many do in every region: ``(P,)`` int64.

    Where entries tie at the threshold, those of lower index are taken until there are k in all regions together.
    """
    xp = namespace(summed.values)
    bits = magnitude_bits(summed.values)
    keep = bits > found.bits if found.ties else bits >= found.bits
    ties = xp.flatnonzero(bits == found.bits) if found.ties else xp.empty(0, np.int64)
    mine = np.array([int(xp.count_nonzero(keep)), len(ties)], np.int32)
    above, tied = ring.allgather(mine, control=True).astype(np.int64).T
    taken = np.diff(np.minimum(np.concatenate([[0], np.cumsum(tied)]), max(k - above.sum(), 0)))
    keep[ties[: taken[ring.rank]]] = True
    return keep, above + taken


def balance(
    kept: SparseVector, counts: np.ndarray, regions: np.ndarray, ring: Rotated
) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Move surplus entries to neighbours, order kept, until every rank holds an equal share.

    Returns what this rank holds then, how many every rank holds, and in which regions these lie.
    """
    ends = np.cumsum(counts)
    shares = np.arange(ring.size + 1) * ends[-1] // ring.size

    def overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
        return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)

    rank, starts = ring.rank, ends - counts
    leaving = overlap(starts[rank], ends[rank], shares[:-1], shares[1:])
    coming = overlap(shares[rank], shares[rank + 1], starts, ends)
    rows, _ = ring.alltoallv(encode(kept), leaving, expected=coming)
    first = np.minimum(np.searchsorted(ends, shares[:-1], side="right"), ring.size - 1)
    last = np.minimum(np.searchsorted(ends, shares[1:], side="left"), ring.size - 1)
    wider = np.stack([regions[first, 0], regions[np.maximum(first, last), 1]], axis=1)
    return decode(rows, kept.size, kept.values.dtype), np.diff(shares), wider
