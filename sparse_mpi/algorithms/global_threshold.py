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
from sparse_mpi.algorithms.forecast import Forecast, crossing
from sparse_mpi.algorithms.rotated import Rotated
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.kernels.base import magnitude_bits

SLACK = 0.1  # a count between (1 - SLACK) k and k ends the search


class GlobalThreshold(NamedTuple):
    """Entries whose magnitude bits reach ``bits`` are the result; if ``ties``, only some of those equal to it."""

    bits: int
    ties: bool


class Bracket(NamedTuple):
    """More than k entries reach ``low`` (or it is 0), fewer than 0.9k reach ``high`` (or it is beyond all)."""

    low: int
    high: int


@dataclass(frozen=True)
class Counted:
    """The rule: between 0.9k and k entries in every step, or all if there are no more."""

    def init(self) -> Forecast:
        """Nothing to forecast from."""
        return Forecast()

    def cut(self, values: Array, k: int, forecast: Forecast, comm: Comm | Rotated) -> tuple[Array, np.ndarray, Forecast]:
        """Which of this rank's ``values`` ``(m,)`` are in the result, a mask; how many of every rank's are, ``(P,)``
        int64; and the next forecast.

        Where entries tie at the threshold, those of lower rank and lower position are taken until there are k.
        """
        octave = 1 << np.finfo(values.dtype).nmant
        bracket, near = Bracket(0, 1 << (8 * values.itemsize - 1)), 0
        if forecast.spacing:
            probes = forecast.probes(probes_gathered(k, comm.size), bracket.high)
            counts = _gather(values, probes, k, comm)
            totals = counts.sum(axis=0)
            forecast = forecast.spaced(probes, totals, k, octave)
            chosen, bracket = narrowed(probes, totals, k, bracket)
            if chosen is not None:
                forecast = forecast.moved(crossing(probes, totals, 95 * k // 100), octave)
                return magnitude_bits(values) >= probes[chosen], counts[:, chosen], forecast
            near = forecast.spacing
        found = search(values, k, comm, bracket, near)
        mask, counts = _ties_shared(values, found, k, comm)
        return mask, counts, forecast.moved(found.bits, octave)

    def bound(self, everything: float, k: int, ranks: int) -> tuple[float, float, int, float]:
        """The most entries in the result, and the values, messages and control bytes that finding them takes a rank.

        Of ``everything``, at most so many reduced entries.
        """
        searches, depth = most_rounds(k), ceil(log2(ranks))
        gathered = (8 + probes_gathered(k, ranks) * _count_type(k).itemsize) * (ranks - 1)
        return min(k, everything), 0, (2 + 2 * searches) * depth, gathered + 16 * (probes_per_round(k) + 1) * searches


def probes_gathered(k: int, ranks: int) -> int:
    """Probes that the allgather counts: as many as cost a thirty-second of what the result's pairs do, 4 to 16."""
    return max(4, min(16, k // ranks // (4 * _count_type(k).itemsize)))


def probes_per_round(k: int) -> int:
    """Probes that one round of the search counts: few for small k, so that counting costs less than sending."""
    return max(8, min(64, k // 16))


def most_rounds(k: int) -> int:
    """Rounds until 63 bits are told apart. Only magnitudes that tie need that many, others one to five."""
    return 1 + ceil(64 / log2(probes_per_round(k) + 1))


def search(values: Array, k: int, comm: Comm | Rotated, bracket: Bracket, near: int = 0) -> GlobalThreshold:
    """A threshold in ``bracket`` that between 0.9 k and k entries reach (all of them, when there are no more than k).

    Args:
        values: ``(m,)`` this rank's reduced entries.
        k: entries wanted over all ranks.
        near: how far from the known end of a bracket that is open at the other to look first; 0: no idea.
    """
    number = probes_per_round(k)
    probes = _outward(bracket, near, number, 1 << (8 * values.itemsize - 1)) if near else _evenly(bracket, number)
    if bracket.low == 0:
        probes = np.union1d([0], probes)
    while True:
        counts = kernels.of(values).count(values, probes)
        totals = comm.allreduce(counts.astype(np.int32 if k * comm.size < 2**31 else np.int64), control=True)
        chosen, bracket = narrowed(probes, totals, k, bracket)
        if chosen is not None:
            return GlobalThreshold(int(probes[chosen]), ties=False)
        if bracket.high - bracket.low == 1:
            return GlobalThreshold(bracket.low, ties=True)
        probes = _evenly(bracket, number)


def narrowed(probes: np.ndarray, totals: np.ndarray, k: int, bracket: Bracket) -> tuple[int | None, Bracket]:
    """Which probe will do, if one does, and otherwise what ``bracket`` becomes by knowing how many reach each."""
    enough = int(np.searchsorted(-totals, -k))  # the first probe that at most k entries reach
    if enough < len(probes) and (totals[enough] >= (1 - SLACK) * k or probes[enough] == 0):
        return enough, bracket
    low = int(probes[enough - 1]) if enough else bracket.low
    return None, Bracket(low, int(probes[enough]) if enough < len(probes) else bracket.high)


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
    counts = np.minimum(kernels.of(values).count(values, probes), k + 1)
    return comm.allgather(counts.astype(_count_type(k)), control=True).astype(np.int64)


def _ties_shared(values: Array, found: GlobalThreshold, k: int, comm: Comm | Rotated) -> tuple[Array, np.ndarray]:
    """The mask and the counts of `Counted.cut`."""
    xp, bits = namespace(values), magnitude_bits(values)
    keep = bits > found.bits if found.ties else bits >= found.bits
    ties = xp.flatnonzero(bits == found.bits) if found.ties else xp.empty(0, np.int64)
    mine = np.array([int(xp.count_nonzero(keep)), len(ties)], np.int32)
    above, tied = comm.allgather(mine, control=True).astype(np.int64).T
    taken = np.diff(np.minimum(np.concatenate([[0], np.cumsum(tied)]), max(k - above.sum(), 0)))
    keep[ties[: taken[comm.rank]]] = True
    return keep, above + taken
