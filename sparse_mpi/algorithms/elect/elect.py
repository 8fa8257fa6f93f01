"""Elect: ranks vote sparsely for entries, then all add exact values of the elected ones.

Costs k(P-1)/P times c votes, one index and two values: with c = 0.42, votes of about 1.6 bytes and packed indices
9.7k(P-1)/P bytes in float32, 5.7 in bfloat16 and 3.7 in int8; 2(P - 1) + 2 ceil(log2 P) messages. Returns k entries,
from 64 P on less k mod P: every rank elects, among its own entries, a fair sample of all, the k/P with the largest sums
of votes. Stores n + n/P numbers on each rank.

All lengths follow from n, k and P: a rank sends every other one c k/P votes, and all know how many entries each elects.
For its own entries a rank counts its own votes, too: exact ones, and two to four times c k/P of them. Where fewer than
it elects have votes, its first entries are elected, whose values may be 0.

Ok-Topk sums an entry only over the ranks that selected it. Here a selection is only a vote, sparse and coarsely
rounded; every rank then sends its full value of each elected entry. More of the gradient travels with an entry, and all
ranks clear the same entries of their residuals.

A rank remembers its votes until their entry is elected and sends only changes. Entries with a large sum that no single
rank would select are thus elected in time. Without error feedback old votes refer to lost gradients, at the cost of 5 %
of the energy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
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
from sparse_mpi.arrays import Array, index_dtype, like, namespace
from sparse_mpi.checks import check_range
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.select import Selector
from sparse_mpi.select.threshold import Threshold, ThresholdState
from sparse_mpi.sparse import Layout, SparseVector, equal_boundaries, regions_of, take, truncate
from sparse_mpi.states import ranged
from sparse_mpi.wire import BitPacked, Int8, Packed, SizeBound, Wire
from sparse_mpi.wire.codecs import Log4
from sparse_mpi.wire.packed import (
    Complete,
    Paired,
    ShortComplete,
    ShortInt8,
    ballots_lengths,
    pack_ballots,
    pack_positions,
    paired,
    positions_lengths,
    unpack_ballots,
    unpack_positions,
)

WHOLE, BESIDE = BitPacked(), ShortComplete(Log4())
WINNERS = Threshold(chance=1.0, zeros=True)  # selects them by sums of votes, which do not grow as a residual does
CANDIDATES = 4  # largest entries among which a rank looks for each vote; on up to four ranks, which elect more, fewer
NOMINATED = 1.05  # the least share of k that all ranks nominate together, if no two vote for the same entry
_NO_VOTES = np.empty(0, np.float32)


@dataclass(frozen=True)
class ElectState:
    """State between steps. Selections, votes and their sums differ between ranks; the rest is replicated."""

    # Fields of 0.4 and of 0.5 that are gone, and new ones, which steps find anew
    earlier: ClassVar = ((("threshold", "near", "floor", "k", "votes"), ("winners",)), (("k", "votes"), ()))

    selection: Any  # the selector's state
    winners: ThresholdState = ranged(make=ThresholdState)  # selection state of this rank's winners
    turn: int = ranged("[0, P)", 0, replicated=True)  # where shares of small k begin; it changes from step to step
    # (n,) sums of this rank's votes; (width,) sums of all ranks' votes for owned entries; written to in place
    my_vote_sum: Array = ranged(make=lambda: _NO_VOTES, lengths=("0", "n"))
    all_vote_sum: Array = ranged(make=lambda: _NO_VOTES, lengths=("0", "n / P"))


@dataclass(frozen=True)
class Elect(Algorithm):
    """Sparse allreduce of about k entries that all ranks elect together and sum whole.

    Args:
        selector: picks a rank's candidates, two to four for each vote.
        votes: c, a rank's votes over k, at least 1.05/P.
        wire: the message format of values, 8 bits by default; the rounding error stays in the residual. If k is n or on
            a single rank, no residual can correct it, and values have full precision. Indices known to all ranks are
            not sent if the format allows.
        levels: 1, 2 or None, as for `OkTopk`.
    """

    selector: Selector = Threshold(zeros=True)
    votes: float = 0.42
    wire: Wire = BitPacked(Int8())
    levels: int | None = levels_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("votes", self.votes, "(0, 1]", "0.42 times k is usual")

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
        values = kernels.of(acc).gather(acc, elected)
        wire = self._sum_wire(k, len(acc), comm.size)
        if beside is None:
            total, sent = self._sum(values, comm, wire)
            return Reduction(SparseVector(elected, total, len(acc)), SparseVector(elected, sent, len(acc))), state

        # Two numbers an entry travel in the same messages, the second one as a power of 4.
        numbers = paired(values, kernels.of(beside).gather(beside, elected))
        total, sent = self._sum(numbers, comm, Paired((wire, wire if wire is WHOLE else BESIDE)), each=2)
        mine, ours = (SparseVector(elected, x[::2].copy(), len(acc)) for x in (sent, total))
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

        owners, passes, rank = Owners.of(len(acc), comm.size), kernels.of(acc), comm.rank
        my_vote_sum = _vote_sum(acc, state.my_vote_sum, len(acc))
        all_vote_sum = _vote_sum(acc, state.all_vote_sum, owners.width)

        # Vote: each rank votes for its largest entries with the difference to its earlier votes: equally many of each
        # other rank's entries, and more of its own.
        candidates, size = self._candidates(k, len(acc), comm.size), owners.width * comm.size
        largest, selection = select(candidates, state.selection, add)
        quotas = owners.quotas(self._votes(k, len(acc), comm.size), state.turn)
        more = min(max(1, int(owners.quotas(candidates, state.turn)[rank])), int(owners.owned[rank]))
        numbers, deltas = passes.cast_votes(my_vote_sum, largest.indices, largest.values, quotas, rank, more)
        sent = sum(quotas.tolist())
        ballots, kept = (SparseVector(numbers[part], deltas[part], size) for part in (slice(sent), slice(sent, None)))

        # Count: a rank adds the votes for its entries, of others coarsely rounded, to those of earlier steps.
        packed, mine = pack_ballots(ballots, quotas, owners.regions), np.full(comm.size, rank)
        for votes in (packed.vector, kept):
            owners.add(my_vote_sum, votes)
        coming = quotas[mine]
        came = unpack_ballots(_exchanged(packed, comm), coming, owners.regions[mine], size, acc.dtype)
        for votes, counts in ((came, coming), (kept, np.array([kept.nnz]))):
            passes.add_in_order(all_vote_sum, votes.indices, votes.values, rank * owners.width, counts)

        # Elect: a rank elects as many of its entries as any other, those with the largest sums of votes.
        quotas, of_winners, elected = owners.quotas(k, state.turn), state.winners, came.indices[:0]
        if quotas[rank]:
            (elected, _, _), of_winners = WINNERS.select(all_vote_sum, int(quotas[rank]), of_winners)
        passes.clear(all_vote_sum, elected)

        # Broadcast winners: all ranks learn which entries are elected.
        message = pack_positions(elected, quotas[rank : rank + 1], owners.regions[:1])
        gathered, _ = comm.allgatherv(message, positions_lengths(quotas, owners.regions))
        indices = owners.indices(unpack_positions(gathered, quotas, owners.regions, size))
        indices.sort()
        passes.clear(my_vote_sum, indices)
        turn = (state.turn + 1) % comm.size
        return indices, ElectState(selection, of_winners, turn, my_vote_sum, all_vote_sum)

    def _alone(
        self, k: int, state: ElectState, selected: tuple[SparseVector, object]
    ) -> tuple[SparseVector, ElectState]:
        largest = truncate(selected[0], k)
        if not (there := largest.values != 0).all():
            largest = take(largest, there)
        return largest, replace(state, selection=selected[1])

    def _sum(self, values: Array, comm: Comm, wire: Wire | Paired, each: int = 1) -> tuple[Array, Array]:
        m, dtype, rank = len(values), values.dtype, comm.rank
        if comm.size == 1:
            return values.copy(), values
        # Reduce-scatter: each rank adds up an equal share of the values. They are numbered, without gaps, so that
        # numbers need not be sent.
        sizes, regions = _shares(m, each, comm.size)
        first, end = regions[rank].tolist()
        numbered = SparseVector(namespace(values).arange(m, dtype=index_dtype(m)), values, m)
        packed = wire.pack(numbered, sizes, regions)
        lengths, sent = packed.lengths, packed.vector.values
        mine, own = np.full(comm.size, rank), slice(rank, rank + 1)
        came = wire.unpack(_exchanged(packed, comm), lengths[mine], regions[mine], m, dtype).values
        summed = kernels.of(came).add_rows(came.reshape(comm.size, end - first))
        # Allgather: every rank gets the sums of all shares.
        shares = SparseVector(numbered.indices[first:end], summed, m)
        arriving = wire.pack(shares, sizes[own], regions[own])
        gathered, _ = comm.allgatherv(arriving.buffer, lengths)
        total = wire.unpack(gathered, lengths, regions, m, dtype)
        # Owed: the rounding error of a sum stays with the rank that added it up.
        if not wire.lossless:
            with np.errstate(over="ignore", invalid="ignore"):  # values may not be finite
                owing = sent[first:end]
                owing -= summed - arriving.vector.values
        return total.values, sent

    def _share(self, k: int, size: int, ranks: int) -> float:
        return max(self.votes, NOMINATED / ranks, k / size)

    def _candidates(self, k: int, size: int, ranks: int) -> int:
        nominees = max(1, round(self._share(k, size, ranks) * k))
        return min(max(2, min(CANDIDATES, ranks - 1)) * nominees, size)

    def _votes(self, k: int, size: int, ranks: int) -> int:
        # Equally many of each owner, and one at least, which may be NaN; with small k of each that elects an entry
        return ranks * max(1, round(self._share(k, size, ranks) * k / ranks)) if k >= ranks else k

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        if ranks == 1:
            return super().selected_band(layout, k, ranks)
        return super().selected_band(layout, self._candidates(k, layout.size, ranks), ranks)

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        return 0, k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        wire, owners = self._sum_wire(k, layout.size, ranks), Owners.of(layout.size, ranks)
        most, region = np.array([owners.most(k)]), owners.regions[:1]
        votes = ballots_lengths(np.array([owners.most(self._votes(k, layout.size, ranks))]), region)
        # All entries of a region take no bytes, but one less
        places = np.maximum(*(positions_lengths(number, region) for number in (most, np.maximum(most - 1, 0))))
        share = min(int(most[0]), -(-min(k, layout.size) // ranks))
        values = wire.max_size(share, share)
        if wire.codec is not None and not wire.lossless:  # every message is full
            length = wire.lengths_of(np.array([share]), np.array([[0, share]]), share, np.float32)
            values = SizeBound(extra=int(length[0]))
        message = values * 2 + SizeBound(extra=int(votes[0] + places[0]))
        return Bound.of(message * (ranks - 1), 2 * (ranks - 1) + 2 * rounds(ranks), 0)

    def _sum_wire(self, k: int, size: int, ranks: int) -> Wire:
        """Return the format of elected values, if possible without indices."""
        return WHOLE if k >= size or ranks == 1 else self._values

    @cached_property
    def _values(self) -> Wire:
        if isinstance(self.wire.codec, Int8):
            return ShortComplete(ShortInt8())
        return self.wire if self.wire.codec is None else Complete(self.wire.codec)


@lru_cache(maxsize=64)
def _shares(m: int, each: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes and regions of equal shares of m numbers, in which ``each`` neighbours stay together."""
    bounds = each * equal_boundaries(m // each, ranks)
    return np.diff(bounds), regions_of(bounds)


def _vote_sum(acc: Array, known: Array, size: int) -> Array:
    """Return a sum of votes ``(size,)`` in the library and dtype of ``acc``; zeros before the first step."""
    if len(known) != size:
        return namespace(acc).zeros(size, acc.dtype)
    return like(known, acc).astype(acc.dtype, copy=False)


def _exchanged(packed: Packed, comm: Comm) -> Array:
    """Send each rank its message; return those for this rank, each as long as its own to itself."""
    lengths = packed.lengths.tolist()
    own = lengths[comm.rank]
    if lengths.count(own) == len(lengths):
        return comm.alltoallv(packed.buffer)[0]
    return comm.alltoallv(packed.buffer, packed.lengths, np.full(comm.size, own))[0]
