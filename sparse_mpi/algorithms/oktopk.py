"""Ok-Topk (Li & Hoefler, PPoPP'22, DOI 10.1145/3503221.3508399): balanced split-and-reduce, then a balanced allgather.

Costs at most 6k(P-1)/P words a rank where k is 81 P or more, 4k(P-1)/P as a rule, and P - 1 + 2 ceil(log2 P) messages
in a steady step: the split, an allgather of counts, an allgather of results. Steps whose threshold was not predicted
search for it with a few small allreduces more, steps that balance send up to P - 1 messages more. A rank whose
selection has no entry in its own region may send 2k/P words more. With a radix r the P - 1 messages are about
(r - 1) log P / log r, and forwarding adds to the volume: at P = 1,024 and r = 32, 62 messages and 6k words at most
densities.
Returns between 0.9k and k entries: the largest of the sum of all selections, up to what the wire format rounds.

Where this departs from the published program: selection is exact in every step (`select/threshold.py`); the global
threshold is found by counting in every step (`global_threshold.py`) instead of by gathering everything in some
(`stale_threshold.py`, for comparison); regions are cut at quantiles of all selections together, in place of means of
each rank's quantiles, and redrawn as soon as results, or what ranks receive, are unbalanced; the result never exceeds k
entries, ties included. `OkTopk.published` has the program's thresholds, periods and trigger, without its
faults: regions that leave the last rank too much, indices as float32, results that are never balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import ceil, sqrt
from typing import Any

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits, rounds
from sparse_mpi.algorithms.exchange import WireFormat, exchange, unpack
from sparse_mpi.algorithms.global_threshold import Counted, Stale
from sparse_mpi.arrays import Array, index_dtype, namespace
from sparse_mpi.checks import check_choice, check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.forwarding import Renumbered
from sparse_mpi.comm.quantiles import pooled
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected, most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import (
    Layout,
    SparseVector,
    contains,
    equal_boundaries,
    merge,
    regions_of,
    split_counts,
    subtract,
    take,
)
from sparse_mpi.wire import Coo, Packed, SizeBound, Wire, decode, encode

# Ok-Topk's regions (Li & Hoefler, PPoPP'22): which rank owns which indices, and how results are balanced.


def draw_regions(selected: SparseVector, k: int, comm: Comm) -> np.ndarray:
    """Agree on the boundaries that cut the selections of all ranks about equally; one allgather of control.

    They are quantiles of all selections together, so that no rank receives far more than others wherever the entries
    of each rank are. Ok-Topk's means of each rank's own quantiles are that only where all ranks select alike.

    Args:
        selected: this rank's selection; it may be empty.
        k: entries that ranks want to select, the same on all.
        comm: all ranks.

    Returns:
        ``(P + 1,)`` int64: region q is ``[boundaries[q], boundaries[q + 1])``, the same on every rank.
    """
    pool = pooled(selected.indices, samples(k, comm.size), comm)
    if len(pool.keys) == 0:
        return equal_boundaries(selected.size, comm.size)
    return np.concatenate([[0], pool.quantiles(comm.size), [selected.size]])


def samples(k: int, ranks: int) -> int:
    """Return the number of its indices that a rank sends for regions to be drawn.

    With 64 of each rank the largest region has 1.3 times the mean on 256 ranks, with 8 about twice the mean. Few ranks
    need fewer, and no more than about a quarter of a step's bytes are spent on them, unless a step has very few.
    """
    return min(max(k // ranks, 8), 4 * ranks, 64)


def imbalance_limit(mean: float, trigger: float) -> float:
    """Return the entries that a rank may have where ranks have ``mean`` of them, before they are shared out anew.

    They are ``trigger`` times as many as chance gives to some rank, three standard deviations above the mean: ranks
    that have one entry on average have four now and then, whatever their regions.
    """
    return trigger * (mean + 3 * sqrt(mean))


def reduction_load(added: int, k: int) -> int:
    """Return the load of a rank that added up ``added`` entries, in sixteenths of k, rounded up."""
    return -(-16 * added // k)


def overloaded(loads: np.ndarray, k: int, trigger: float) -> bool:
    """Return True if some rank added up far more entries than others, by the ``loads`` ``(P,)`` of all ranks.

    Far more are ``trigger`` times as many, and at least twice as many, as chance gives to some rank.
    """
    entries = loads * k / 16
    return bool(entries.max() > imbalance_limit(entries.mean(), max(trigger, 2)))


def balance(
    results: SparseVector, counts: np.ndarray, regions: np.ndarray, ring: Comm
) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Move surplus results to other ranks, in the order of indices, until every rank has an equal share of them.

    Every rank knows all counts, so each knows what it sends and receives without asking.

    Args:
        results: this rank's entries of the result, those of its region.
        counts: ``(P,)`` int64, how many entries each rank has.
        regions: ``(P, 2)`` int64, start and stop of the indices among which each rank's entries lie.
        ring: the ranks in the order of their regions.

    Returns:
        This rank's share of the results; how many entries every rank has then, ``(P,)`` int64; and start and stop of
        the indices among which these lie, ``(P, 2)`` int64: of one region or of several neighbouring ones.
    """
    # Number the results of all ranks: rank q has [starts[q], ends[q]), and is to have [shares[q], shares[q + 1]).
    rank, ends = ring.rank, np.cumsum(counts)
    starts = ends - counts
    shares = np.arange(ring.size + 1) * ends[-1] // ring.size

    # Send each rank what this one has of its share, and receive what the others have of this one's.
    leaving = _overlap(starts[rank], ends[rank], shares[:-1], shares[1:])
    arriving = _overlap(shares[rank], shares[rank + 1], starts, ends)
    received, _ = ring.alltoallv(encode(results), leaving, expected=arriving)

    # A share extends from the region of its first entry to that of its last.
    first = np.minimum(np.searchsorted(ends, shares[:-1], side="right"), ring.size - 1)
    last = np.minimum(np.searchsorted(ends, shares[1:], side="left"), ring.size - 1)
    wider = np.stack([regions[first, 0], regions[np.maximum(first, last), 1]], axis=1)
    return decode(received, results.size, results.values.dtype), np.diff(shares), wider


def allgather_bound(message: Callable[[float], SizeBound], result: float, ranks: int, trigger: float) -> SizeBound:
    """Return an upper bound on what a rank sends to balance and gather a result of ``result`` entries.

    A rank either has more than others, moves them as pairs, and then gathers an equal share; or it gathers as many as
    the `imbalance_limit`.

    Args:
        message: returns the bound of a message of that many results.
        result: entries of all ranks.
        ranks: P.
        trigger: see `imbalance_limit`.
    """
    mean = result / ranks
    balanced = message(ceil(mean)) + SizeBound(pairs=mean)
    unbalanced = message(min(imbalance_limit(mean, trigger), result))
    return balanced.max(unbalanced) * (ranks - 1)


def _overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
    """Return the lengths ``(P,)`` int64 of the intersections of one interval with P others."""
    return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)


# Ok-Topk's split and reduce (Li & Hoefler, PPoPP'22): every rank gets the sum of all selections in its own region.
#
# One stage takes P - 1 messages a rank, and sends each entry once. Several stages take fewer messages, but forward
# entries from rank to rank, adding them up on the way.


def split_reduce(
    selected: SparseVector, boundaries: np.ndarray, radix: int | None, wire: WireFormat, comm: Comm
) -> tuple[SparseVector, SparseVector, int]:
    """Send every part of a selection to the rank that owns its region, and add up what arrives in one's own.

    Args:
        selected: this rank's selection.
        boundaries: ``(P + 1,)`` int64, region q is ``[boundaries[q], boundaries[q + 1])`` and owned by rank q.
        radix: groups into which a stage divides the ranks; None: as many as there are ranks, which makes one stage.
        wire: the message format. What a stage's rounding takes away is not in the sums, and stays the debt of the
            rank that rounded.
        comm: the ranks in the order of their regions.

    Returns:
        The sum of all selections in this rank's region; this rank's contribution to the sums of all regions; and how
        many entries it had to add up, in all stages.
    """
    first, last = 0, comm.size  # the ranks that work on the same stretch of indices as this one
    partial, contributed, added = selected, None, 0
    while contributed is None or last - first > 1:
        # Divide these ranks into groups, and cut the partial sums into a message for each group's regions.
        groups = divided(first, last, radix)
        packed = wire.pack(partial, split_counts(partial, boundaries[groups]), regions_of(boundaries[groups]))

        # Exchange: every group collects what lies in its regions. With a group for each rank it is one all-to-all.
        own = int(np.searchsorted(groups, comm.rank, side="right")) - 1
        first, last = int(groups[own]), int(groups[own + 1])
        region = boundaries[[first, last]]
        if len(groups) == comm.size + 1:
            received = exchange(packed, region, wire, comm)
        else:
            received = unpack(*_exchange_groups(packed, groups, own, comm), region, wire, packed.vector)

        # Take what rounding lost out of this rank's contribution, which starts as its whole selection.
        if contributed is None:
            contributed = packed.vector
        elif not wire.lossless:
            contributed = subtract(contributed, subtract(partial, packed.vector))

        # Reduce: add up the messages in the rank order of their senders, and go on within the own group.
        partial, added = merge(received), added + received.nnz
    return partial, contributed, added


def divided(first: int, last: int, radix: int | None) -> np.ndarray:
    """Return the boundaries of the groups into which a stage divides ranks ``first`` to ``last - 1``.

    Returns:
        ``(groups + 1,)`` int64 ascending, with sizes that differ by at most one.
    """
    number = min(radix or last - first, last - first)
    return first + np.arange(number + 1) * (last - first) // number


def stages(ranks: int, radix: int | None) -> list[tuple[int, int]]:
    """Return, for each stage, the most messages a rank sends and the most selections its partial sums add up."""
    exchanges, merged = [], 1
    while ranks > 1:
        number = min(radix or ranks, ranks)
        exchanges.append((number - 1, merged))
        merged *= 2 * number - 1 if ranks % number else number
        ranks = -(-ranks // number)
    return exchanges


def _exchange_groups(packed: Packed, groups: np.ndarray, own: int, comm: Comm) -> tuple[Array, np.ndarray]:
    """Exchange the messages of one stage, see `partners`.

    Args:
        packed: a message for each group.
        groups: ``(groups + 1,)`` int64, boundaries of the groups.
        own: the number of this rank's group.
        comm: the ranks in the order of their regions.

    Returns:
        The messages that this rank has to add up, in the rank order of their senders, and the length of each.
    """
    # Cut the buffer into messages; the one for the own group stays here.
    ends = np.cumsum(packed.lengths)
    messages = [packed.buffer[end - length : end] for length, end in zip(packed.lengths, ends, strict=True)]
    received = {comm.rank: messages[own]}
    for there, dest, sources in partners(groups, comm.rank):
        for to, source in zip_longest([dest], sources):
            message = comm.sendrecv(messages[there], to, source)
            if source is not None:
                received[source] = message
    # Put what arrived in the rank order of its senders.
    in_order = [received[source] for source in sorted(received)]
    return namespace(packed.buffer).concatenate(in_order), np.array([len(message) for message in in_order])


def partners(groups: np.ndarray, rank: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the partners of a rank in each step of a stage.

    Steps rotate: in step i a rank sends to the i-th group after its own one, and receives from the i-th before it. The
    ranks of a group share the work of receiving: of a sender outside, that rank of the group takes the message which
    stands at the sender's position in its own group. If the sender's group is longer by one, the message of its last
    rank goes to the first of this group.

    Args:
        groups: ``(groups + 1,)`` int64, boundaries of the groups, whose sizes differ by at most one.
        rank: of those.

    Yields:
        The group to which the rank sends, the rank of it that takes the message, and those from which messages come:
        none, one or two.
    """
    own = int(np.searchsorted(groups, rank, side="right")) - 1
    number, place, width = len(groups) - 1, rank - groups[own], int(groups[own + 1] - groups[own])
    for step in range(1, number):
        there, back = (own + step) % number, (own - step) % number
        dest = int(groups[there] + place % (groups[there + 1] - groups[there]))
        yield there, dest, list(range(int(groups[back] + place), int(groups[back + 1]), width))


RESIDUALS = ("sender", "owner")
REFRESHES = ("histogram", "exact")
# The published program reduces all entries in so many first steps, by workload: --dense-warmup of training programs
DENSE_STEPS = {"vgg": 512, "lstm": 128, "bert": 0}


@dataclass(frozen=True)
class OkTopkState:
    """State carried between steps. `selection` differs between ranks; the rest is replicated."""

    selection: Any  # the selector's state
    threshold: Any  # the state of the rule that finds the global threshold
    boundaries: np.ndarray  # (P + 1,) int64: region q, rank q's own, is [boundaries[q], boundaries[q + 1])
    age: int = 0  # steps since the boundaries were drawn
    stale: bool = True  # whether the next step must redraw them
    turn: int = 0  # the rank that owns the first region; it changes where ownership rotates


@dataclass(frozen=True)
class OkTopk(Algorithm):
    """Ok-Topk (Li & Hoefler, PPoPP'22): about k entries at a volume that does not grow with the number of ranks.

    Args:
        selector: picks the entries to send.
        period: steps after which regions are redrawn even if they are still balanced (tau in the paper).
        trigger: results move between ranks, and regions are redrawn for the next step, when one rank has more than this
            many times the results that chance gives to some rank (the mean, if it is large), see
            `regions.imbalance_limit`. The paper waits for 4 times the mean, which alone would allow 8k(P-1)/P words.
        residual: which rank's residual takes what does not make it into the result. ``"sender"``, the paper's rule:
            every rank keeps what it selected in vain. ``"owner"``: the owner of a region keeps the sum, and ownership
            moves on by one rank in every step, so that sums kept on one rank meet the entries of others.
        wire: the message format.
        radix: ranks split and reduce in ceil(log P / log radix) stages of at most radix - 1 messages each, in which
            entries are forwarded and added up on the way. None: in one stage of P - 1 messages, which sends least.
        refresh: how the global threshold is found. ``"histogram"``: by counting, in every step. ``"exact"``, the
            paper's rule: every ``threshold_period`` steps all reduced entries are gathered on all ranks, and in between
            a stale threshold is nudged. It sends more, and its results may exceed k: it is here for comparison.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("period", self.period, 1, "step")
        check_range("trigger", self.trigger, "[1, inf)", "1.5 times the mean is usual")
        check_choice("residual", self.residual, RESIDUALS)
        if self.radix is not None:
            check_whole("radix", self.radix, 2, "groups a stage", "None makes a single stage")
        check_choice("refresh", self.refresh, REFRESHES)
        check_whole("threshold_period", self.threshold_period, 1, "step")

    @cached_property
    def traits(self) -> Traits:
        """Return what differs from the defaults: the owner of an entry may keep what is in no result."""
        return Traits(
            delegates_residual=self.residual == "owner",
            lossless=self.wire.lossless,
            accumulates=True,
            auto_candidate=True,
            in_default_plans=True,
        )

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Return what the published program has for each of its workloads; it starts dense, see `DENSE_STEPS`.

        Its nudging factors of the local threshold are known for VGG and BERT; LSTM is given VGG's.
        """
        common = {"period": 64, "trigger": 4.0, "residual": "sender", "refresh": "exact"}
        return {
            workload: {
                "selector": Threshold(refresh="exact", period=period, nudge=nudge),
                "threshold_period": period,
                **common,
            }
            for workload, period, nudge in (("vgg", 32, 1.012), ("lstm", 32, 1.012), ("bert", 128, 1.025))
        }

    @cached_property
    def _rule(self) -> Counted | Stale:
        """Return the rule by which the global threshold is found."""
        if self.refresh == "exact":
            return Stale(self.threshold_period)
        return Counted() if self.wire.lossless else Counted(mantissa=7)

    def init(self, layout: Layout, k: int, ranks: int) -> OkTopkState:
        """Return the state before the first step, which holds neither regions nor a threshold."""
        return OkTopkState(self.selector.init(layout, k), self._rule.init(), np.zeros(ranks + 1, np.int64))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: OkTopkState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, OkTopkState]:
        """Sum the selections of all ranks, and return the about k largest sums on every rank.

        Returns:
            The reduction and the next state. ``total`` has 0.9k to k entries, fewer only where the sums have no more.
            ``sent`` is this rank's selection where ``total`` has an entry; with ``residual="owner"`` its whole
            selection, less the sums of its region that did not make it into the result.
        """
        n, dtype = len(acc), acc.dtype

        # Select by the local threshold: about k entries of this rank's acc.
        selected, selection = self.selector.select(acc, k, state.selection, add)

        # Redraw the regions when they are due, or when the step before found them unbalanced.
        ring = Renumbered(comm, state.turn) if state.turn else comm
        boundaries, age = state.boundaries, state.age + 1
        if state.stale or age > self.period:
            boundaries, age = draw_regions(selected, k, comm), 1

        # Split and reduce: each rank gets the sum of all selections in the region that it owns.
        summed, sent, added = split_reduce(selected, boundaries, self.radix, self.wire, ring)

        # Threshold: about k of all sums reach the global threshold, and they are the result.
        load = reduction_load(added, k)
        chosen, counts, loads, threshold = self._rule.cut(summed.values, k, state.threshold, ring, piggyback=load)
        results, regions = take(summed, chosen), regions_of(boundaries)

        # Balance: where one rank has far more results than the mean, share them out equally before they are gathered.
        unbalanced = bool(counts.max() > imbalance_limit(counts.mean(), self.trigger))
        if unbalanced:
            results, counts, regions = balance(results, counts, regions, ring)

        # Allgather: every rank gets all results, in the order of the regions.
        packed = self.wire.pack(results, counts[ring.rank : ring.rank + 1], regions[ring.rank : ring.rank + 1])
        gathered, lengths = ring.allgatherv(packed.buffer, self.wire.lengths_of(counts, regions, n, dtype))
        total = self.wire.unpack(gathered, lengths, regions, n, dtype)

        # Owed: what this rank selected, or summed as an owner, and total lacks stays in its residual.
        turn = state.turn
        if self.residual == "owner":
            sent, turn = subtract(sent, take(summed, ~chosen)), (turn + 1) % comm.size
        else:
            sent = take(sent, contains(total, sent.indices))
        if not self.wire.lossless:
            sent = subtract(sent, subtract(results, packed.vector))

        # Adapt: regions that leave some rank too much are redrawn in the next step, unless they have just been drawn.
        stale = age > 1 and (unbalanced or overloaded(loads, k, self.trigger))
        return Reduction(total, sent), OkTopkState(selection, threshold, boundaries, age, stale, turn)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return 0.9 times the size of one selection, and k; the published threshold promises neither."""
        if self.refresh == "exact":
            return 0, min(layout.size, most_selected(self.selector, layout, k) * ranks)
        return 0.9 * fewest_selected(self.selector, k), k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in a step: the paper's 6k(P-1)/P words, or more if k is below 81 P.

        These are about k(P-1)/P pairs each in the split, in balancing and in the allgather; k/P pairs more where a
        rank's selection has no entry in its own region, and whole entries where k < P. With a radix the bound assumes
        that no two ranks selected the same entry and that all entries lie in one region. With ``refresh="exact"`` it
        assumes that all reduced entries are in the result, in every step and so in the one that gathers them too.
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
