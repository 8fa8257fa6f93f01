"""Elect: ranks vote sparsely for entries, and then all of them add exact values of those that are elected.

Costs k(P-1)/P times c votes, one index and two values: with c = 0.25, votes of about 2.4 bytes and packed indices
9.7k(P-1)/P bytes in float32, 5.7 in bfloat16 and 3.7 in int8; 2(P - 1) + 3 ceil(log2 P) messages in a steady step.
Returns between 0.9k and k entries, fewer only where the votes name no more: the largest sums of votes.

Ok-Topk sums an entry over those ranks only that selected it. Here a rank's selection is no more than a vote, which can
be few and coarsely rounded, and where enough of them meet every rank gives all that it has. So an entry takes more of
the gradient with it, and nothing lingers of what was decided: all ranks clear the same entries. MiCRO (`micro.py`) does
that too, but one rank decides for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, rounds
from sparse_mpi.algorithms.oktopk.global_threshold import Counted
from sparse_mpi.algorithms.oktopk.regions import balance, draw_regions
from sparse_mpi.algorithms.oktopk.split_reduce import split_reduce, stages
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected, most_selected
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, equal_boundaries, subtract, take
from sparse_mpi.wire import BitPacked, Int8, Wire, regions_of
from sparse_mpi.wire.positions import pack_positions, positions_lengths, unpack_positions

BALLOT = BitPacked(Int8())  # the format of votes
STEP = 2**0.25  # the factor by which the share of votes changes


@dataclass(frozen=True)
class ElectState:
    """The state from step to step; all of it but the selector's part is equal on all ranks."""

    selection: Any  # the selector's state
    threshold: Any  # the state of the rule that finds the global threshold
    boundaries: np.ndarray  # (P + 1,) int64: region q, whose votes rank q counts, is [boundaries[q], boundaries[q + 1])
    k: int = 0  # entries wanted in the last step; 0 before the first
    votes: float = 1.0  # of a rank, times k
    age: int = 0  # steps since the boundaries were drawn
    stale: bool = True  # whether the next step must redraw them


@dataclass(frozen=True)
class Elect(Algorithm):
    """Sparse allreduce of about k entries that all ranks elect together and give all they have of.

    Args:
        selector: picks the entries that a rank votes for.
        votes: c, the fewest votes of a rank as a share of k. A step in which all ranks together named fewer than k
            entries raises it for the next, up to 1; one in which they named more lowers it again.
        period: steps after which regions are redrawn even if they are still balanced.
        trigger: regions are redrawn when one rank has more than this many times the mean number of elected entries.
        wire: the message format of values. Indices that all ranks know are not sent, unless the format cannot do so.
        radix: groups into which a stage of the two exchanges divides the ranks, see `OkTopk`.
    """

    selector: Selector = Threshold()
    votes: float = 0.25
    period: int = 64
    trigger: float = 1.25
    wire: Wire = BitPacked()
    radix: int | None = None

    accumulates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.votes <= 1:
            raise ValueError(f"votes must be in (0, 1] (times k), got {self.votes}; 0.25 is usual")
        if self.period < 1:
            raise ValueError(f"period must be at least 1 step, got {self.period}")
        if self.trigger < 1:
            raise ValueError(f"trigger must be at least 1 (times the mean), got {self.trigger}")
        if self.radix is not None and self.radix < 2:
            raise ValueError(f"radix must be at least 2 groups a stage, got {self.radix}; None makes a single stage")

    @property
    def _rule(self) -> Counted:
        """Return the rule by which votes are cut off, no finer than they are rounded."""
        return Counted(mantissa=7)

    def init(self, layout: Layout, k: int, ranks: int) -> ElectState:
        """Return the state before the first step, in which a rank has k votes."""
        return ElectState(self.selector.init(layout, k), self._rule.init(), np.zeros(ranks + 1, np.int64))

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: ElectState, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, ElectState]:
        """Return the sums of all ranks' ``acc`` at the entries that they elect.

        Args:
            acc: ``(n,)`` float32 or float64, residual + gradient; left as it is.
            k: entries wanted in the result.
            comm: all ranks.
            state: of the step before.
            layout: ignored.
            add: ``(n,)``, what the selection adds to ``acc`` in the same pass, if anything.

        Returns:
            The reduction and the next state. ``sent`` is acc at the elected entries, less what rounding took.
        """
        n = len(acc)

        # Vote: each rank picks the largest of its entries, as many as it has votes.
        share = state.votes if k == state.k else 1.0
        named, selection = self.selector.select(acc, max(1, round(share * k)), state.selection, add)

        # Redraw the regions when they are due, or when the step before found them unbalanced.
        boundaries, age = state.boundaries, state.age + 1
        if state.stale or age > self.period:
            boundaries, age = draw_regions(named, comm), 1

        # Count: the owner of a region adds up the votes there, which are rounded coarsely.
        summed, _ = split_reduce(named, boundaries, self.radix, BALLOT, comm)

        # Elect: about k of all sums of votes reach the global threshold.
        chosen, counts, threshold = self._rule.cut(summed.values, k, state.threshold, comm)

        # Balance: where one rank has far more of the elected than the mean, share them out equally.
        winners, regions = take(summed, chosen), regions_of(boundaries)
        unbalanced = bool(counts.max() * comm.size > self.trigger * counts.sum())
        if unbalanced:
            winners, counts, regions = balance(winners, counts, regions, comm)

        # Proclaim: all ranks learn which entries are elected. Only indices are sent.
        own = slice(comm.rank, comm.rank + 1)
        message = pack_positions(winners.indices, counts[own], regions[own])
        gathered, _ = comm.allgatherv(message, positions_lengths(counts, regions))
        elected = unpack_positions(gathered, counts, regions, n)

        # Give: every rank adds all that it has of the elected entries, whether it voted for them or not.
        total, sent = self._sum(SparseVector(elected, acc[elected], n), comm)

        # Who has named too few entries all together has more votes next time.
        enough = int(counts.sum()) >= k - k // 10
        share = max(share / STEP, self.votes) if enough else min(share * STEP, 1.0)
        return Reduction(total, sent), ElectState(selection, threshold, boundaries, k, share, age, unbalanced)

    def _sum(self, given: SparseVector, comm: Comm) -> tuple[SparseVector, SparseVector]:
        """Add up values of entries that are the same on all ranks.

        Args:
            given: this rank's entries.
            comm: all ranks.

        Returns:
            The sums, and this rank's contribution to them, both with the indices of ``given``.
        """
        m, xp = given.nnz, namespace(given.values)
        # The entries are numbered, and each rank adds up an equal share of the numbers. As every share is complete, a
        # packed message of it needs no indices.
        numbered = SparseVector(xp.arange(m, dtype=given.indices.dtype), given.values, m)
        bounds = equal_boundaries(m, comm.size)
        shares, lengths = regions_of(bounds), np.diff(bounds)
        own = slice(comm.rank, comm.rank + 1)
        summed, sent = split_reduce(numbered, bounds, self.radix, self.wire, comm)
        # Gather the shares on all ranks.
        packed = self.wire.pack(summed, lengths[own], shares[own])
        of_all = self.wire.lengths_of(lengths, shares, m, given.values.dtype)
        gathered, _ = comm.allgatherv(packed.buffer, of_all)
        total = self.wire.unpack(gathered, of_all, shares, m, given.values.dtype)
        # Owed: what rounding takes from a sum stays with the rank that added it up.
        if not self.wire.lossless:
            sent = subtract(sent, subtract(summed, packed.vector))
        return given._replace(values=total.values), given._replace(values=sent.values)

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the fewest and the most votes of a rank."""
        fewest, most = super().selected_band(layout, max(1, round(self.votes * k)), ranks)
        return fewest, max(most, most_selected(self.selector, layout, k))

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the fewest entries that can be elected, as many as a rank has votes, and k."""
        return 0.9 * fewest_selected(self.selector, max(1, round(self.votes * k))), k

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in a step, as if votes and values had indices and full precision.

        Each is sent once in the split and once for the elected entries; see `OkTopk.bound` for what they add to it.
        """
        if ranks == 1:
            return Bound(0, 0, 0, 0)
        most = most_selected(self.selector, layout, k)
        exchange = stages(ranks, self.radix)
        elected, values, messages, control = self._rule.bound(min(layout.size, most * ranks), k, ranks)
        share = -(-elected // ranks)
        moved_and_gathered = max(elected / ranks + share, min(self.trigger, ranks) * elected / ranks)
        votes = sum(min(layout.size, most * selections) for _, selections in exchange)
        sent = 2 * sum(number for number, _ in exchange)
        return Bound(
            votes + len(exchange) * elected + (moved_and_gathered + share) * (ranks - 1),
            values,
            sent + ranks - 1 + 4 * rounds(ranks) + messages,
            control + 16 * ranks,
            max(self.wire.overhead(), BALLOT.overhead()) * (sent + 2 * (ranks - 1)),
        )
