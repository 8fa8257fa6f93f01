"""The global threshold, by counting: the magnitude that about k of all ranks' sums reach.

The published Ok-Topk reuses a stale threshold in most steps (`published.py`). Here every step finds it anew:

- The fast path: one small allgather, or allreduce, counts the entries that reach each of a few candidates around a
  predicted threshold. In a steady run 0.9k to k entries reach one.
- The slow path, `Counted.search`: an interval search, one allreduce of counts a round, for the first step and for
  thresholds that have left the candidates.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from operator import neg
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, bits_type, magnitude_bits, mantissa_bits, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.sparse import SparseVector, reaching, take
from sparse_mpi.states import ranged

SLACK = 0.1  # a threshold that between (1 - SLACK) k and k entries reach ends the search
SMALL = 128  # k below which chance moves the threshold farther in a step than eight candidates reach


class _Bracket(NamedTuple):
    """An interval of magnitude bits that encloses the global threshold.

    Entries that reach ``high`` are in the result, and enough others that reach ``low`` to have k. 0.9k to k entries
    reach the threshold ``low == high``.
    """

    low: int
    high: int


class _RankCounts(NamedTuple):
    """A settled bracket, and each rank's number of entries on either side."""

    bracket: _Bracket
    above: np.ndarray  # (P,) int64, entries that reach the high end: all of them are in the result
    tied: np.ndarray  # (P,) int64, entries that reach only the low end: some of them may be
    piggybacked: np.ndarray  # (P,) int64, the number that each rank piggybacked; zeros if none


def _bits_end(values: Array) -> int:
    """Return the number above all magnitude bits of the dtype of ``values``."""
    return 1 << (8 * values.itemsize - 1)


@lru_cache(maxsize=64)
def _count_type(k: int) -> np.dtype:
    """Return the unsigned integer type of a count on the wire; k + 1 stands for any number above k."""
    return np.min_scalar_type(k + 1)


def _counts_at(values: Array, thresholds: np.ndarray) -> np.ndarray:
    """Count the entries that reach each of the ascending ``thresholds`` ``(m,)``, int64; 0 above every magnitude."""
    last = np.iinfo(bits_type(values)).max
    return np.where(thresholds > last, 0, kernels.of(values).count(values, np.minimum(thresholds, last)))


def gather_counts(counts: np.ndarray, k: int, comm: Comm, *piggyback: int) -> tuple[np.ndarray, np.ndarray]:
    """Gather the ``counts`` ``(m,)`` of every rank, clipped to k + 1, with at most one piggybacked number.

    Return the counts ``(P, m)`` and the piggybacked numbers ``(P,)``, int64, zeros if none.
    """
    m = len(counts)
    row = [min(count, k + 1) for count in counts.tolist()]
    if piggyback:
        row.append(min(*piggyback, 255))
    rows = comm.allgather(np.array(row, _count_type(k)), control=True).astype(np.int64)
    return rows[:, :m], rows[:, m] if piggyback else np.zeros(len(rows), np.int64)


def _sum_counts(counts: np.ndarray, k: int, comm: Comm) -> np.ndarray:
    """Return the sums of all ranks' ``counts`` ``(m,)``, int64; any number above k stands for sums above k."""
    counts = np.minimum(counts, k + 1)
    return comm.allreduce(counts.astype(_sum_type(k, comm.size)), control=True).astype(np.int64)


@lru_cache(maxsize=64)
def _sum_type(k: int, ranks: int) -> np.dtype:
    return np.min_scalar_type((k + 1) * ranks)


def _result_of(
    sums: SparseVector, counted: _RankCounts, k: int, rank: int, chosen: Array | None = None
) -> tuple[SparseVector, np.ndarray]:
    """Return the entries and counts of `Counted.cut`: all above the bracket, and ties in rank order up to k."""
    (low, high), counts, ties = counted.bracket, counted.above, 0
    if low < high:
        room = max(k - int(counts.sum()), 0)
        each = np.diff(np.minimum(np.cumsum(counted.tied), room), prepend=0)
        counts, ties = counts + each, int(each[rank])
    if not ties:
        return reaching(sums, high, int(counts[rank]), chosen), counts
    if chosen is not None:
        sums = take(sums, chosen)
    bits = magnitude_bits(sums.values)
    mask = bits > high - 1
    tied = namespace(bits).flatnonzero((bits >= low) & ~mask)
    mask[tied[:ties]] = True
    return take(sums, mask, int(counts[rank])), counts


@dataclass(frozen=True)
class ThresholdPredictor:
    """A linear predictor of the magnitude bits that about 0.95k entries will reach, equal on all ranks.

    Integers make every processor predict the same threshold.
    """

    bits: int = ranged("[0, many)", 0)  # the prediction, as magnitude bits
    trend: int = ranged("(-bits, bits)", 0)  # change of the threshold, in bits a step
    # bits from one candidate threshold to the next: about 0.07k entries; 0 before the first step
    spacing: int = ranged("[0, bits)", 0)

    def candidates(self, number: int, lowest: int, top: int) -> list[int]:
        """Return up to ``number`` candidate thresholds below ``top``, half below the prediction."""
        bits, twice = self.bits, range(1 - number, number, 2)
        return sorted({min(max(bits + self.spacing * away // 2, lowest), top - 1) for away in twice})

    def respaced(self, candidates: list[int], totals: list[int], k: int, octave: int) -> ThresholdPredictor:
        """Return the predictor with a spacing that puts about 0.07k entries between two candidates."""
        # Between the candidates near k, the spacing follows from the entries that lie between them.
        low = bisect_right(totals, -2 * k, key=neg)
        high = bisect_left(totals, -(k // 2), key=neg) - 1
        spacing = self.spacing
        if low < high:
            entries = max(totals[low] - totals[high], 1)
            spacing = 7 * k * (candidates[high] - candidates[low]) // (100 * entries)
        elif totals[0] > k > totals[-1]:
            spacing = spacing // 4
        # Limit the change, to a factor of 4 down or 2 up, and the spacing itself, to 1/1024 to 1/8 octave.
        spacing = min(max(spacing, self.spacing // 4), self.spacing * 2)
        return ThresholdPredictor(self.bits, self.trend, min(max(spacing, octave >> 10), octave >> 3))

    def updated(self, bits: int, octave: int) -> ThresholdPredictor:
        if not self.spacing:
            return ThresholdPredictor(bits, 0, octave >> 7)
        trend = self.trend + 3 * (bits - self.bits) // 4  # three quarters of the error
        trend = min(max(trend, -octave // 4), octave // 4)
        return ThresholdPredictor(max(bits + trend, 0), trend, self.spacing)


def crossing(candidates: list[int], totals: list[int], target: int) -> int:
    """Return the magnitude bits that ``target`` entries would reach, interpolated between two candidates."""
    above = bisect_left(totals, -target, key=neg)
    if above in (0, len(candidates)):
        return candidates[min(above, len(candidates) - 1)]
    low, high = candidates[above - 1 : above + 1]
    more, fewer = totals[above - 1 : above + 1]
    return low + (high - low) * (more - target) // (more - fewer)


@dataclass(frozen=True)
class Counted:
    """The rule that counts in every step: 0.9k to k entries are in the result, or all if there are fewer.

    Args:
        mantissa: mantissa bits by which magnitudes are compared. More than the wire format preserves would only
            lengthen the search.
        lowest: magnitude bits of the least threshold: 1 leaves out zeros.
    """

    mantissa: int = 52
    lowest: int = 0

    def init(self) -> ThresholdPredictor:
        return ThresholdPredictor()

    def cut(
        self,
        sums: SparseVector,
        k: int,
        predictor: ThresholdPredictor,
        comm: Comm,
        *piggyback: int,
        chosen: Array | None = None,
    ) -> tuple[SparseVector, np.ndarray, np.ndarray, ThresholdPredictor]:
        """Select this rank's sums that are in the result.

        Ties are selected in order of rank and position until there are k.

        Args:
            sums: this rank's sums, float32 or float64.
            k: entries wanted over all ranks.
            predictor: the state of the step before, equal on all ranks.
            comm: the ranks in the order of their regions.
            piggyback: one number at most, which travels to all ranks with the counts; clipped to 255.
            chosen: a mask ``(m,)`` of valid sums, see `Kernels.merge_loosely`; None: all.

        Returns:
            The entries in the result; each rank's number of entries and its piggybacked number, ``(P,)`` int64; and the
            next predictor.
        """
        counted, predictor = self.count(sums.values, k, predictor, comm, *piggyback, chosen=chosen)
        return *_result_of(sums, counted, k, comm.rank, chosen), counted.piggybacked, predictor

    def count(
        self,
        values: Array,
        k: int,
        predictor: ThresholdPredictor,
        comm: Comm,
        *piggyback: int,
        chosen: Array | None = None,
    ) -> tuple[_RankCounts, ThresholdPredictor]:
        """Find the threshold, and count each rank's entries at it; see `cut` for the arguments."""
        octave = 1 << mantissa_bits(values.dtype)  # difference in magnitude bits between a number and its double
        bracket, near = _Bracket(self.lowest, _bits_end(values)), predictor.spacing
        counted: _RankCounts | None = None

        # The fast path: candidates around the predicted threshold.
        if near:
            candidates = predictor.candidates(self._nearby(k, comm.size), *bracket)
            counts = kernels.of(values).count(values, np.array(candidates), chosen)
            by_rank, piggybacked = gather_counts(counts, k, comm, *piggyback)
            totals = by_rank.sum(axis=0).tolist()
            # Narrow the bracket. It must have settled at candidates, whose counts of each rank are known.
            bracket = self._narrowed(candidates, totals, k, bracket)
            predictor = predictor.respaced(candidates, totals, k, octave)
            if self._settled(bracket, values) and bracket.low in candidates and bracket.high in candidates:
                low, high = by_rank[:, candidates.index(bracket.low)], by_rank[:, candidates.index(bracket.high)]
                counted = _RankCounts(bracket, high, low - high, piggybacked)
                predictor = predictor.updated(crossing(candidates, totals, 95 * k // 100), octave)

        # The slow path: the first step of all, or the threshold has moved farther than the candidates reach.
        if counted is None:
            values = values if chosen is None else values[chosen]
            bracket = self.search(values, k, comm, bracket, near)
            counted = self._rank_counts(values, bracket, k, comm, *piggyback)
            predictor = predictor.updated(bracket.low, octave)
        return counted, predictor

    def search(self, values: Array, k: int, comm: Comm, bracket: _Bracket, near: int = 0) -> _Bracket:
        """Narrow ``bracket`` until it settles, by rounds of counting at more candidates, one allreduce each.

        More than k entries reach its low end, unless it is `lowest`; fewer than 0.9k its high end. The first candidate
        is ``near`` bits from a single known end; 0: no estimate.
        """
        # Begin near the known end of the bracket, if one is known.
        number = self._searched(k)
        candidates = self._outward(bracket, near, number, _bits_end(values)) if near else _evenly(bracket, number)
        if bracket.low == self.lowest:
            candidates = np.union1d([self.lowest], candidates)
        # Count and narrow until magnitudes inside the bracket tie.
        while True:
            totals = _sum_counts(kernels.of(values).count(values, candidates), k, comm)
            bracket = self._narrowed(candidates.tolist(), totals.tolist(), k, bracket)
            if self._settled(bracket, values):
                return bracket
            candidates = _evenly(bracket, number)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """Return a result's most entries, and the values, messages and control bytes of a rank to find it."""
        searches, nearby = self.most_rounds(k), self._nearby(k, ranks)
        gathered, summed = _count_type(k).itemsize * (ranks - 1), 2 * _sum_type(k, ranks).itemsize
        control = 3 * gathered + summed * (self._searched(k) + 1) * searches
        return min(k, everything), 0, (2 + 2 * searches) * rounds(ranks), control + (nearby + 1) * gathered

    def most_rounds(self, k: int) -> int:
        """Return the rounds of a search to the last bit, as ties need; usually one to five suffice."""
        return 1 + ceil((12 + self.mantissa) / log2(self._searched(k) + 1))

    def _rank_counts(self, values: Array, bracket: _Bracket, k: int, comm: Comm, *piggyback: int) -> _RankCounts:
        by_rank, piggybacked = gather_counts(_counts_at(values, np.array(bracket)), k, comm, *piggyback)
        low, high = by_rank.T
        return _RankCounts(bracket, high, low - high, piggybacked)

    def _nearby(self, k: int, ranks: int) -> int:
        return 16 if k < SMALL else max(4, min(8, k // ranks // (4 * _count_type(k).itemsize)))

    def _searched(self, k: int) -> int:
        return max(8, min(64, k // 16))

    def _settled(self, bracket: _Bracket, values: Array) -> bool:
        return bracket.high - bracket.low <= max((1 << mantissa_bits(values.dtype)) >> self.mantissa, 1)

    def _narrowed(self, candidates: list[int], totals: list[int], k: int, bracket: _Bracket) -> _Bracket:
        enough = bisect_left(totals, -k, key=neg)  # the first candidate that at most k entries reach
        if enough < len(candidates) and (totals[enough] >= (1 - SLACK) * k or candidates[enough] == self.lowest):
            return _Bracket(candidates[enough], candidates[enough])
        low = candidates[enough - 1] if enough else bracket.low
        return _Bracket(low, candidates[enough] if enough < len(candidates) else bracket.high)

    def _outward(self, bracket: _Bracket, near: int, number: int, end: int) -> np.ndarray:
        """Return up to ``number`` candidates at growing distances, from ``near`` bits on, from a known end.

        Small moves are thus resolved finely, and large ones still enclosed. Between two known ends candidates lie
        evenly.
        """
        low, high = bracket
        if low > self.lowest and high < end:
            return _evenly(bracket, number)
        doublings = max((high - low) // near, 1).bit_length()
        distances = near << (np.arange(number, dtype=np.int64) * doublings // number)
        candidates = low + distances if high == end else high - distances
        return np.unique(candidates[(candidates > low) & (candidates < high)])


def _evenly(bracket: _Bracket, number: int) -> np.ndarray:
    low, high = bracket
    step = -(-(high - low) // (number + 1))
    return low + step * np.arange(1, (high - low - 1) // step + 1)
