"""Which rank combines the values of which keys: regions of keys that hold about as many entries each.

A region ends at a quantile of the pool of all ranks' entries, which samples of each rank tell. So regions are even
wherever a rank's keys lie, where the mean of quantiles of ranks with keys of their own would give some rank many times
its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import expm1, log1p
from typing import NamedTuple

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.keyed.entries import Entries

SAMPLES = 32  # of each rank
WORDS = 3 + SAMPLES
PACKET = 1 << 15  # bytes of a message below which it takes about as long as a shorter one
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie evenly however many there are


class Pool(NamedTuple):
    """What samples tell of the entries of all ranks, on every rank alike."""

    counts: np.ndarray  # (P,) int64, of entries
    keys: np.ndarray  # (s,) int64, ascending: samples
    weights: np.ndarray  # (s,) entries that each stands for
    lowest: int
    highest: int

    @property
    def span(self) -> int:
        """Return how many keys the range of all has."""
        return self.highest - self.lowest + 1

    @property
    def range(self) -> np.ndarray:
        """Return the smallest and the largest key of all, ``(2,)`` int64."""
        return np.array([self.lowest, self.highest])


def pooled(entries: Entries, comm: Comm) -> Pool:
    """Return the pool of all ranks' entries. Collective: an allgather of control."""
    return pool_of(comm.allgather(told(entries, comm.rank), control=True))


def told(entries: Entries, rank: int) -> np.ndarray:
    """Return what a rank tells of its entries, `WORDS` int64: how many they are, the first, the last, and samples.

    Samples are equally far apart. Those of different ranks stand at different places, so that where ranks have the same
    keys all of them together tell as much more.
    """
    words, keys = np.zeros(WORDS, np.int64), entries.keys
    words[0] = len(keys)
    if len(keys):
        words[1:3] = keys[0], keys[-1]
        words[3:] = keys[((np.arange(SAMPLES) + (0.5 + rank * GOLDEN) % 1) * (len(keys) / SAMPLES)).astype(np.int64)]
    return words


def pool_of(rows: np.ndarray) -> Pool:
    """Return the pool of ranks that have `told` these rows ``(P, WORDS)``."""
    counts = rows[:, 0].copy()
    full = rows[counts > 0]
    if len(full) == 0:
        return Pool(counts, np.empty(0, np.int64), np.empty(0), 0, 0)
    samples, weights = full[:, 3:].reshape(-1), np.repeat(full[:, 0] / SAMPLES, SAMPLES)
    order = np.argsort(samples, kind="stable")
    return Pool(counts, samples[order], weights[order], int(full[:, 1].min()), int(full[:, 2].max()))


def regions_of(pool: Pool, ranks: int) -> np.ndarray:
    """Return the smallest and the largest key of each rank's region, ``(P, 2)`` int64, both inclusive.

    Smallest keys ascend. Of regions with the same smallest key only the last one has entries, see `dealt`.
    """
    lows = np.full(ranks, pool.lowest, np.int64)
    if len(pool.keys):
        shares = np.cumsum(pool.weights)
        at = np.searchsorted(shares, shares[-1] * np.arange(1, ranks) / ranks)
        lows[1:] = pool.keys[np.minimum(at, len(pool.keys) - 1)]
    following = np.append(lows[1:], pool.highest)
    highs = np.where(following > lows, following - 1, lows)
    highs[-1] = pool.highest
    return np.stack([lows, highs], axis=1)


def dealt(entries: Entries, regions: np.ndarray) -> np.ndarray:
    """Return how many of the entries are in each region ``(P,)`` int64."""
    starts = np.searchsorted(entries.keys, regions[:, 0], side="left")
    return np.diff(np.append(starts, len(entries.keys))).astype(np.int64)


def part_of(entries: Entries, regions: np.ndarray, rank: int) -> Entries:
    """Return the entries that lie in the region of a rank."""
    counts = dealt(entries, regions)
    end = int(counts[: rank + 1].sum())
    return entries.part(slice(end - int(counts[rank]), end))


def degrees(pool: Pool, each: Callable[[float], float]) -> list[int]:
    """Return into how many groups the stages of a butterfly divide the ranks, never more than the stage before.

    They are as many as leave messages of `PACKET` bytes, two at least: what a rank has gets less as equal keys meet.

    Args:
        pool: of the entries of all ranks.
        each: returns the bytes of an entry in messages of so many entries of all keys.
    """
    left = len(pool.counts)
    mean, found, ranks = float(pool.counts.mean()), [left], 1
    while left > 1:
        entries = distinct([mean] * ranks, pool.span) / ranks
        found.append(min(found[-1], left, max(2, int(entries * each(entries * ranks) / PACKET))))
        ranks *= found[-1]
        left = -(-left // found[-1])
    return found[1:]


def distinct(counts: Sequence[float], span: int) -> float:
    """Return how many distinct keys are expected among sets of so many, each drawn from ``span`` keys at random."""
    logs = sum(log1p(-min(count / span, 1 - 1e-16)) for count in counts)
    return min(-expm1(logs) * span, sum(counts))
