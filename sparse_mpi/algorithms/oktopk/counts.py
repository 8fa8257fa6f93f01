"""Counts of entries that reach thresholds, of every rank, and which entries are in the result by them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.kernels.base import bits_type, magnitude_bits


class Bracket(NamedTuple):
    """An interval of magnitude bits that encloses the global threshold.

    Entries that reach ``high`` are in the result; of those that reach only ``low``, as many as it takes to have k.
    ``low == high`` is a threshold that 0.9k to k entries reach.
    """

    low: int
    high: int

    def settled(self, resolution: int) -> bool:
        """Return True if magnitudes inside the bracket count as equal, so that narrowing it further is in vain."""
        return self.high - self.low <= resolution


class RankCounts(NamedTuple):
    """A settled bracket, and how many entries each rank has on either side of it."""

    bracket: Bracket
    above: np.ndarray  # (P,) int64, entries that reach the high end: all of them are in the result
    tied: np.ndarray  # (P,) int64, entries that reach only the low end: some of them may be
    told: np.ndarray  # (P,) int64, what each rank told besides; zeros if nothing

    @staticmethod
    def of(bracket: Bracket, counts: np.ndarray, told: np.ndarray) -> RankCounts:
        """Return the counts of a bracket, from ``counts`` ``(P, 2)`` of entries that reach its low and high end."""
        reach, above = counts.T
        return RankCounts(bracket, above, reach - above, told)


def bits_end(values: Array) -> int:
    """Return the number that all magnitude bits of the dtype of ``values`` lie below."""
    return 1 << (8 * values.itemsize - 1)


def count_type(k: int) -> np.dtype:
    """Return the unsigned integer type of a count on the wire, in which k + 1 stands for anything above k.

    A rank with more than k entries is enough to know that the total exceeds k too.
    """
    return np.min_scalar_type(k + 1)


def gather_counts(
    values: Array, thresholds: np.ndarray, k: int, comm: Comm, *tell: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many entries of every rank reach each threshold, ``(P, len(thresholds))`` int64, and what it told.

    Counts above k are clipped to k + 1. ``thresholds`` ascend; those above every magnitude count 0. One number more
    may be told, see `Counted.cut`; what ranks told is ``(P,)`` int64, zeros if they told nothing.
    """
    last, kind = np.iinfo(bits_type(values)).max, count_type(k)
    counts = np.where(thresholds > last, 0, kernels.of(values).count(values, np.minimum(thresholds, last)))
    row = [*np.minimum(counts, k + 1), *(min(number, 255) for number in tell)]
    rows = comm.allgather(np.array(row, kind), control=True).astype(np.int64)
    m = len(thresholds)
    return rows[:, :m], rows[:, m:].sum(axis=1)


def taken(values: Array, found: RankCounts, k: int, rank: int) -> tuple[Array, np.ndarray]:
    """Return the mask and the counts of `Counted.cut`: all entries above the bracket, and then ties until there are k.

    Ties go to the ranks in their order, so every rank knows from the counts alone how many of each rank's are taken.
    """
    bits = magnitude_bits(values)
    chosen = bits > found.bracket.high - 1
    taken = np.diff(np.minimum(np.concatenate([[0], np.cumsum(found.tied)]), max(k - found.above.sum(), 0)))
    if taken[rank]:
        ties = namespace(values).flatnonzero((bits >= found.bracket.low) & ~chosen)
        chosen[ties[: taken[rank]]] = True
    return chosen, found.above + taken
