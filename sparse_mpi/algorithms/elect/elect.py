"""Elect: ranks vote sparsely for entries, then all add exact values of the elected ones.

Costs k(P-1)/P times c votes, one index and two values: with c = 0.42, votes of about 1.6 bytes and packed indices
9.7k(P-1)/P bytes in float32, 5.7 in bfloat16 and 3.7 in int8; 2(P - 1) + 3 ceil(log2 P) messages, or about 4 sqrt(P) +
3 ceil(log2 P) with many ranks and few votes. Returns k entries, fewer only if fewer have votes: every rank elects,
among its own entries, a fair sample of all, the k/P with the largest sums of votes. Stores n + n/P numbers on each
rank.

Ok-Topk sums an entry only over the ranks that selected it. Here a selection is only a vote, sparse and coarsely
rounded; every rank then sends its full value of each elected entry. More of the gradient travels with an entry, and all
ranks clear the same entries of their residuals.

A rank remembers its votes until their entry is elected and sends only changes. Entries with a large sum that no single
rank would select are thus elected in time. Without error feedback old votes refer to lost gradients, at the cost of 5 %
of the energy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isqrt
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import (
    Algorithm,
    Bound,
    Carried,
    Reduction,
    Traits,
    levels_field,
)
from sparse_mpi.algorithms.elect.owners import Owners
from sparse_mpi.algorithms.elect.votes import (
    candidates_for,
    may_vote,
    vote_deltas,
    vote_sum_like,
)
from sparse_mpi.algorithms.exchange import split, split_reduce, stages
from sparse_mpi.algorithms.global_threshold import count_type, gather_counts
from sparse_mpi.arrays import Array, index_dtype, namespace
from sparse_mpi.checks import check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.threshold import Threshold, ThresholdState
from sparse_mpi.sparse import Layout, SparseVector, equal_boundaries, regions_of, take, truncate
from sparse_mpi.states import ranged
from sparse_mpi.wire import BitPacked, Int8, Wire
from sparse_mpi.wire.codecs import Log4
from sparse_mpi.wire.packed import (
    POSITIONS,
    Ballots,
    Complete,
    Paired,
    ShortComplete,
    ShortInt8,
    pack_positions,
    paired,
    positions_lengths,
    unpack_positions,
)

BALLOTS, WHOLE, BESIDE = Ballots(), BitPacked(), ShortComplete(Log4())
WINNERS = Threshold(chance=1.0)  # selects them by their sums of votes, which do not grow as a residual does
STEP = 2**0.25  # the factor by which the share of votes changes
NOMINATED = 0.95  # the least share of k that all ranks nominate together, if no two vote for the same entry
_NO_VOTES = np.empty(0, np.float32)
ENOUGH_RANKS = 16  # the most ranks on which exchanges have one stage, unless a radix is given
ENOUGH_VOTES = 16  # votes in a message above which one stage does on any number of ranks


@dataclass(frozen=True)
class ElectState:
    """State between steps. Selections and vote sums differ between ranks; the rest is replicated."""

    # Fields of 0.4 that are gone, and new ones: guesses that save time and change no result
    since_0_4: ClassVar = (("threshold", "near", "floor"), ("winners",))

    selection: Any  # the selector's state
    winners: ThresholdState = ranged(make=ThresholdState)  # selection state of this rank's winners
    k: int = ranged("[0, n]", 0, replicated=True)  # entries wanted in the last step; 0 before the first
    votes: float = ranged("[0, 1]", 0.0, replicated=True)  # the candidates for a rank's votes, as a share of k
    # the place of rank 0 where ranks divide entries up; it changes from step to step
    turn: int = ranged("[0, P)", 0, replicated=True)
    # (n,) sums of this rank's votes; (width,) sums of all ranks' votes for owned entries; written to in place
    my_vote_sum: Array = ranged(make=lambda: _NO_VOTES, lengths=("0", "n"))
    all_vote_sum: Array = ranged(make=lambda: _NO_VOTES, lengths=("0", "n / P"))


@dataclass(frozen=True)
class Elect(Algorithm):
    """Sparse allreduce of about k entries that all ranks elect together and sum whole.

    Args:
        selector: picks a rank's candidates, four for each vote.
        votes: c, a rank's votes over k, at least 1/P; halved where votes take two stages. After a step with fewer than
            0.9k elected entries, because ranks voted for the same ones, ranks divide more entries among themselves, up
            to k; after other steps fewer.
        wire: the message format of values, 8 bits by default; the rounding error stays in the residual. If k is n or on
            a single rank, no residual can correct it, and values have full precision. Indices known to all ranks are
            not sent if the format allows.
        radix: groups into which a stage of the two exchanges divides the ranks, see `OkTopk`. None: one stage, or two
            on more than 16 ranks if a single one's messages would hold fewer than 16 votes.
        levels: 1, 2 or None, as for `OkTopk`.
    """

    selector: Selector = Threshold()
    votes: float = 0.42
    wire: Wire = BitPacked(Int8())
    radix: int | None = None
    levels: int | None = levels_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("votes", self.votes, "(0, 1]", "0.42 times k is usual")
        if self.radix is not None:
            check_whole("radix", self.radix, 2, "groups a stage", "None chooses by the ranks")

    @cached_property
    def traits(self) -> Traits:
        # At the usual density 8 bits a value are the bytes of Ok-Topk's 1 % in 32; see accuracy.md
        lossless, carries = self.wire.lossless, self.wire.codec is not None
        return Traits(lossless=lossless, accumulates=True, carries=carries, usual_density=0.0275)

    def init(self, layout: Layout, k: int, ranks: int) -> ElectState:
        return ElectState(self.selector.init(layout, k))

    def reduce(
        self,
        acc: Array,
        k: int,
        comm: Comm,
        state: ElectState,
        layout: Layout,
        add: Array | None = None,
        beside: Array | None = None,
    ) -> tuple[Reduction, ElectState]:
        """Return the sums of ``acc`` at the elected entries; ``sent`` is this rank's values there, less rounding.

        With second moments ``beside``, votes are in Adam's units: the change that an entry would make to its weight.
        """
        # Alone, a rank needs no votes: it elects its largest entries.
        if comm.size == 1 and beside is None:
            largest, state = self._alone(k, state, self.selector.select(acc, k, state.selection, add))
            return Reduction(largest._replace(values=largest.values.copy()), largest), state

        # Elect: the same entries on all ranks.
        elected, state = self.elect(acc, k, comm, state, add, beside)

        # Sum: every rank adds all that it has of the elected entries, whether it voted for them or not.
        contribution = SparseVector(elected, kernels.of(acc).gather(acc, elected), len(acc))
        wire = self._sum_wire(k, len(acc), comm.size)
        if beside is None:
            total, sent = self._sum(contribution.values, comm, wire)
            return Reduction(SparseVector(elected, total, len(acc)), SparseVector(elected, sent, len(acc))), state

        # Two numbers an entry travel in the same messages, the second one as a power of 4.
        numbers = paired(contribution.values, kernels.of(beside).gather(beside, elected))
        total, sent = self._sum(numbers, comm, Paired((wire, wire if wire is WHOLE else BESIDE)), each=2)
        mine, ours = (contribution._replace(values=x[::2].copy()) for x in (sent, total))
        return Carried(ours, mine, total[1::2].copy()), state

    def forget(self, state: ElectState) -> ElectState:
        """Return the state without votes, which refer to a residual that is no more."""
        return replace(state, my_vote_sum=_NO_VOTES, all_vote_sum=_NO_VOTES)

    def elect(
        self,
        acc: Array,
        k: int,
        comm: Comm,
        state: ElectState,
        add: Array | None,
        beside: Array | None = None,
    ) -> tuple[Array, ElectState]:
        """Return the ascending indices of the elected entries, alike on all ranks, and the next state."""
        standardized = self.selector.select_standardized
        select = partial(self.selector.select, acc) if beside is None else partial(standardized, acc, beside)

        if comm.size == 1:
            largest, state = self._alone(k, state, select(k, state.selection, add))
            return largest.indices, state

        owners, radix, passes = Owners.of(len(acc), comm.size), self._radix(k, comm.size), kernels.of(acc)
        my_vote_sum = vote_sum_like(acc, state.my_vote_sum, len(acc))
        all_vote_sum = vote_sum_like(acc, state.all_vote_sum, owners.width)

        # Vote: each rank votes for its largest entries with the difference to its earlier votes, if there is any. Where
        # ranks vote for the same entries, they divide up more of them.
        least = self._least_votes(k, len(acc), comm.size)
        share = max(state.votes, least) if state.k / 2 <= k <= 2 * state.k else least
        nominees, votes = max(1, round(share * k)), max(1, round(least * k))
        candidates, selection = select(candidates_for(nominees, len(acc)), state.selection, add)
        if share > least:
            place = (comm.rank + state.turn) % comm.size
            candidates = take(candidates, may_vote(candidates, place, comm.size, least / share))
        ballots, owned = owners.numbered(*vote_deltas(candidates, my_vote_sum, votes))

        # Count: the owner of an entry adds up the votes for it, which are rounded coarsely, to the votes of earlier
        # steps.
        (indices, values, _), lengths, cast, _ = split(ballots, owned, owners.boundaries, radix, BALLOTS, comm)
        owners.add(my_vote_sum, cast)
        own = slice(comm.rank, comm.rank + 1)
        first, runs = int(owners.boundaries[comm.rank]), BALLOTS.runs(values, lengths, owners.regions[comm.rank])
        passes.add_in_order(all_vote_sum, indices, values, first, runs)

        # Elect: a rank elects as many of its entries as any other, those with the largest sums of votes, which begin
        # anew without votes.
        quota, of_winners = int(owners.quotas(k, state.turn)[comm.rank]), state.winners
        winners = namespace(indices).empty(0, indices.dtype)
        if quota:
            (winners, _, _), of_winners = WINNERS.select(all_vote_sum, quota, of_winners)
        passes.clear(all_vote_sum, winners)

        # Broadcast winners: all ranks learn which entries are elected, and how many: fewer where fewer have votes.
        counts, regions = gather_counts(np.array([len(winners)]), k, comm)[0][:, 0], owners.regions
        message = pack_positions(winners, counts[own], regions[own] - first)
        gathered, _ = comm.allgatherv(message, positions_lengths(counts, regions))
        indices = owners.indices(unpack_positions(gathered, counts, regions, ballots.size))
        indices.sort()
        passes.clear(my_vote_sum, indices)

        # Adapt: if too few entries have votes, ranks divide up more of them next time, and others than this time.
        enough, turn = counts.sum() >= k - k // 10, (state.turn + 1) % comm.size
        share = max(share / STEP, least) if enough else min(share * STEP, 1.0)
        return indices, ElectState(selection, of_winners, k, share, turn, my_vote_sum, all_vote_sum)

    def _alone(
        self, k: int, state: ElectState, selected: tuple[SparseVector, object]
    ) -> tuple[SparseVector, ElectState]:
        largest = truncate(selected[0], k)
        if not (there := largest.values != 0).all():
            largest = take(largest, there)
        return largest, replace(state, selection=selected[1], k=k)

    def _sum(self, values: Array, comm: Comm, wire: Wire | Paired, each: int = 1) -> tuple[Array, Array]:
        m, dtype = len(values), values.dtype
        if comm.size == 1:
            return values.copy(), values
        # Reduce-scatter: each rank adds up an equal share of the values. They are numbered, without gaps, so that
        # numbers need not be sent.
        bounds = each * equal_boundaries(m // each, comm.size)
        numbered = SparseVector(namespace(values).arange(m, dtype=index_dtype(m)), values, m)
        summed, (_, sent, _), _ = split_reduce(numbered, bounds, self._radix(m // each, comm.size), wire, comm)
        # Allgather: every rank gets the sums of all shares.
        shares, sizes, own = regions_of(bounds), bounds[1:] - bounds[:-1], slice(comm.rank, comm.rank + 1)
        packed = wire.pack(summed, sizes[own], shares[own])
        gathered, lengths = comm.allgatherv(packed.buffer, wire.lengths_of(sizes, shares, m, dtype))
        total = wire.unpack(gathered, lengths, shares, m, dtype)
        # Owed: the rounding error of a sum stays with the rank that added it up.
        if not wire.lossless:
            share = sent[bounds[comm.rank] : bounds[comm.rank + 1]]
            with np.errstate(over="ignore", invalid="ignore"):  # values may not be finite
                share -= summed.values - packed.vector.values
        return total.values, sent

    def _radix(self, k: int, ranks: int) -> int | None:
        few = ranks > ENOUGH_RANKS and self.votes * k < ENOUGH_VOTES * ranks
        return self.radix or (isqrt(ranks - 1) + 1 if few else None)

    def _least_votes(self, k: int, size: int, ranks: int) -> float:
        return max(self.votes / min(len(stages(ranks, self._radix(k, ranks))) or 1, 2), NOMINATED / ranks, k / size)

    def _votes(self, k: int, size: int, ranks: int) -> int:
        return max(1, round(self._least_votes(k, size, ranks) * k))

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        if ranks == 1:
            return super().selected_band(layout, k, ranks)
        votes = self._votes(k, layout.size, ranks)
        fewest, most = super().selected_band(layout, candidates_for(votes, layout.size), ranks)
        return fewest, max(most, most_selected(self.selector, layout, candidates_for(k, layout.size)))

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return 0, k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        exchange = stages(ranks, self._radix(k, ranks))
        owners, wire, elected = Owners(layout.size, ranks), self._sum_wire(k, layout.size, ranks), min(k, layout.size)
        own, numbers = self._votes(k, layout.size, ranks), owners.width * ranks
        votes = [BALLOTS.max_size(min(layout.size, own * merged), numbers, number) for number, merged in exchange]
        sums = [wire.max_size(elected, elected, number) for number, _ in exchange]
        share = -(-elected // ranks)
        gathered = (POSITIONS.max_size(share, owners.width) + wire.max_size(share, share)) * (ranks - 1)
        messages, control = 2 * sum(number for number, _ in exchange) + 3 * rounds(ranks), count_type(k).itemsize
        return Bound.of(sum([*votes, *sums], gathered), messages, control * (ranks - 1))

    def _sum_wire(self, k: int, size: int, ranks: int) -> Wire:
        """Return the format of elected values, if possible without indices."""
        return WHOLE if k >= size or ranks == 1 else self._values

    @cached_property
    def _values(self) -> Wire:
        if isinstance(self.wire.codec, Int8):
            return ShortComplete(ShortInt8())
        return self.wire if self.wire.codec is None else Complete(self.wire.codec)
