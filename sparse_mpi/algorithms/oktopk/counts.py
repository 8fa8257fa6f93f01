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
    piggybacked: np.ndarray  # (P,) int64, the number that each rank piggybacked; zeros if none

    @staticmethod
    def of(bracket: Bracket, counts: np.ndarray, piggybacked: np.ndarray) -> RankCounts:
        """Return the counts of a bracket, from ``counts`` ``(P, 2)`` of entries that reach its low and high end."""
        reach, above = counts.T
        return RankCounts(bracket, above, reach - above, piggybacked)


def bits_end(values: Array) -> int:
    """Return the number that all magnitude bits of the dtype of ``values`` lie below."""
    return 1 << (8 * values.itemsize - 1)


def count_type(k: int) -> np.dtype:
    """Return the unsigned integer type of a count on the wire, in which k + 1 stands for anything above k.

    A rank with more than k entries is enough to know that the total exceeds k too.
    """
    return np.min_scalar_type(k + 1)


def gather_counts(
    values: Array, thresholds: np.ndarray, k: int, comm: Comm, *piggyback: int
) -> tuple[np.ndarray, np.ndarray]:
    """Count the entries of every rank that reach each threshold, and piggyback at most one number on the message.

    Counts above k are clipped to k + 1. ``thresholds`` ascend; those above every magnitude count 0.

    Returns:
        The counts, ``(P, len(thresholds))`` int64; and the piggybacked numbers ``(P,)`` int64, zeros if there are none.
    """
    last, kind = np.iinfo(bits_type(values)).max, count_type(k)
    counts = np.where(thresholds > last, 0, kernels.of(values).count(values, np.minimum(thresholds, last)))
    row = [*np.minimum(counts, k + 1), *(min(number, 255) for number in piggyback)]
    rows = comm.allgather(np.array(row, kind), control=True).astype(np.int64)
    m = len(thresholds)
    return rows[:, :m], rows[:, m:].sum(axis=1)


def result_mask(values: Array, counted: RankCounts, k: int, rank: int) -> tuple[Array, np.ndarray]:
    """Return the mask and the counts of `Counted.cut`: all entries above the bracket, and then ties until there are k.

    Ties are selected in the order of the ranks, so that each knows from the counts how many every other one selects.
    """
    bits = magnitude_bits(values)
    mask = bits > counted.bracket.high - 1
    selected_ties = np.diff(np.minimum(np.concatenate([[0], np.cumsum(counted.tied)]), max(k - counted.above.sum(), 0)))
    if selected_ties[rank]:
        ties = namespace(values).flatnonzero((bits >= counted.bracket.low) & ~mask)
        mask[ties[: selected_ties[rank]]] = True
    return mask, counted.above + selected_ties
