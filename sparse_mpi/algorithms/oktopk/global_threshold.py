"""The magnitude that k of all ranks' reduced entries reach, found by counting.

The published Ok-Topk gathers every reduced entry on every rank to find this threshold, and then uses a stale one
(`stale_threshold.py`). Here every rank tells, in one small allgather, how many of its entries reach each of a few
probes around a forecast. As a rule one of them cuts off 0.9k to k entries, and then everybody also knows how many each
rank holds. Otherwise a search goes on, round by round, with more probes and an allreduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.base import rounds
from sparse_mpi.algorithms.oktopk.predictor import Forecast, crossing
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.renumbered import Rotated
from sparse_mpi.kernels.base import bits_type, magnitude_bits

SLACK = 0.1  # a count between (1 - SLACK) k and k ends the search


class Bracket(NamedTuple):
    """Magnitude bits. Entries that reach ``high`` are in the result, and of those that reach only ``low``, as many as
    it takes to have k. ``low == high`` is a threshold that 0.9k to k entries reach."""

    low: int
    high: int

    def settled(self, resolution: int) -> bool:
        """Whether what lies in between ties."""
        return self.high - self.low <= resolution


@dataclass(frozen=True)
class Counted:
    """The rule: between 0.9k and k entries in every step, or all if there are no more.

    Args:
        mantissa: bits to which magnitudes are told apart: where values are rounded, more would be in vain.
    """

    mantissa: int = 52

    def init(self) -> Forecast:
        """Nothing to forecast from."""
        return Forecast()

    def cut(
        self, values: Array, k: int, forecast: Forecast, comm: Comm | Rotated
    ) -> tuple[Array, np.ndarray, Forecast]:
        """Which of this rank's ``values`` ``(m,)`` are in the result, a mask; how many of every rank's are, ``(P,)``
        int64; and the next forecast.

        Where entries tie, those of lower rank and lower position are taken until there are k.
        """
        octave = 1 << np.finfo(values.dtype).nmant
        resolution = max(octave >> self.mantissa, 1)
        bracket, near = Bracket(0, 1 << (8 * values.itemsize - 1)), 0
        if forecast.spacing:
            probes = forecast.probes(probes_gathered(k, comm.size), bracket.high)
            counts = _gather(values, probes, k, comm)
            totals = counts.sum(axis=0)
            bracket, near = narrowed(probes, totals, k, bracket), forecast.spacing
            forecast = forecast.spaced(probes, totals, k, octave)
            if bracket.settled(resolution) and np.isin(bracket, probes).all():
                forecast = forecast.moved(crossing(probes, totals, 95 * k // 100), octave)
                reach, above = counts[:, np.searchsorted(probes, bracket)].T
                return *_taken(values, bracket, above, reach - above, k, comm.rank), forecast
        bracket = search(values, k, comm, bracket, near, resolution)
        reach, above = _gather(values, np.array(bracket), k, comm).T
        return *_taken(values, bracket, above, reach - above, k, comm.rank), forecast.moved(bracket.low, octave)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """The most entries in the result, and the values, messages and control bytes that finding them takes a rank.

        Of ``everything``, at most so many reduced entries.
        """
        searches = self.most_rounds(k)
        gathered = (2 + probes_gathered(k, ranks)) * _count_type(k).itemsize * (ranks - 1)
        return (
            min(k, everything),
            0,
            (2 + 2 * searches) * rounds(ranks),
            gathered + 16 * (probes_per_round(k) + 1) * searches,
        )

    def most_rounds(self, k: int) -> int:
        """Rounds until all bits are told apart. Only magnitudes that tie need that many, others one to five."""
        return 1 + ceil((12 + self.mantissa) / log2(probes_per_round(k) + 1))


def probes_gathered(k: int, ranks: int) -> int:
    """Probes that the allgather counts: as many as cost a thirty-second of what the result's pairs do, 4 to 8."""
    return max(4, min(8, k // ranks // (4 * _count_type(k).itemsize)))


def probes_per_round(k: int) -> int:
    """Probes that one round of the search counts: few for small k, so that counting costs less than sending."""
    return max(8, min(64, k // 16))


def search(
    values: Array, k: int, comm: Comm | Rotated, bracket: Bracket, near: int = 0, resolution: int = 1
) -> Bracket:
    """What is left of ``bracket`` when it has settled, by rounds of counting.

    Args:
        values: ``(m,)`` this rank's reduced entries.
        k: entries wanted over all ranks.
        bracket: more than k entries reach its low end, unless it is 0; fewer than 0.9k its high end.
        near: how far from the known end of a bracket that is open at the other to look first; 0: no idea.
        resolution: magnitudes whose bits differ by less than this tie.
    """
    number = probes_per_round(k)
    probes = _outward(bracket, near, number, 1 << (8 * values.itemsize - 1)) if near else _evenly(bracket, number)
    if bracket.low == 0:
        probes = np.union1d([0], probes)
    while True:
        counts = kernels.of(values).count(values, probes)
        totals = comm.allreduce(counts.astype(np.int64), control=True)
        bracket = narrowed(probes, totals, k, bracket)
        if bracket.settled(resolution):
            return bracket
        probes = _evenly(bracket, number)


def narrowed(probes: np.ndarray, totals: np.ndarray, k: int, bracket: Bracket) -> Bracket:
    """What is left of ``bracket``, knowing how many entries reach each probe: ``totals``, descending."""
    enough = int(np.searchsorted(-totals, -k))  # the first probe that at most k entries reach
    if enough < len(probes) and (totals[enough] >= (1 - SLACK) * k or probes[enough] == 0):
        return Bracket(int(probes[enough]), int(probes[enough]))
    low = int(probes[enough - 1]) if enough else bracket.low
    return Bracket(low, int(probes[enough]) if enough < len(probes) else bracket.high)


def _evenly(bracket: Bracket, number: int) -> np.ndarray:
    """Up to ``number`` probes inside a bracket."""
    low, high = bracket
    step = -(-(high - low) // (number + 1))
    return low + step * np.arange(1, (high - low - 1) // step + 1)


def _outward(bracket: Bracket, near: int, number: int, top: int) -> np.ndarray:
    """Probes from the known end of a bracket on, the first ``near`` it, each at a multiple of the last's distance."""
    low, high = bracket
    if low > 0 and high < top:
        return _evenly(bracket, number)
    doublings = max((high - low) // near, 1).bit_length()
    distances = near << (np.arange(number, dtype=np.int64) * doublings // number)
    probes = low + distances if high == top else high - distances
    return np.unique(probes[(probes > low) & (probes < high)])


def _count_type(k: int) -> np.dtype:
    """What holds a count, if more than k counts as k + 1: one rank's excess is everybody's."""
    return np.min_scalar_type(k + 1)


def _gather(values: Array, probes: np.ndarray, k: int, comm: Comm | Rotated) -> np.ndarray:
    """How many entries of every rank reach each probe, more than k counted as k + 1: ``(P, len(probes))`` int64."""
    last = np.iinfo(bits_type(values)).max
    counts = np.where(probes > last, 0, kernels.of(values).count(values, np.minimum(probes, last)))
    return comm.allgather(np.minimum(counts, k + 1).astype(_count_type(k)), control=True).astype(np.int64)


def _taken(
    values: Array, bracket: Bracket, above: np.ndarray, tied: np.ndarray, k: int, rank: int
) -> tuple[Array, np.ndarray]:
    """The mask and the counts of `Counted.cut`: all that reach the bracket, and of those that tie what is left of k."""
    bits = magnitude_bits(values)
    keep = bits > bracket.high - 1
    taken = np.diff(np.minimum(np.concatenate([[0], np.cumsum(tied)]), max(k - above.sum(), 0)))
    if taken[rank]:
        keep[namespace(values).flatnonzero((bits >= bracket.low) & ~keep)[: taken[rank]]] = True
    return keep, above + taken
