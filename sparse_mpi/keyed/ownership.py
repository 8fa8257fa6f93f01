"""Which rank combines the values of which keys: regions of keys that hold about as many entries each.

A region ends at a quantile of the pool of all ranks' entries, which samples tell: `EACH` a region and rank, equally far
apart. So regions are even wherever a rank's keys lie, where the mean of quantiles of ranks with keys of their own would
give some rank many times its share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.keyed.entries import Entries

EACH = 4  # samples of each rank for each region


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
    def everything(self) -> np.ndarray:
        """Return the region ``(1, 2)`` of all keys, as `regions_of` has regions."""
        return np.array([[self.lowest, self.highest]])


def pooled(entries: Entries, comm: Comm) -> Pool:
    """Return the pool of all ranks' entries. Collective: an allgather of control."""
    keys, each = entries.keys, EACH * comm.size
    told = np.zeros(each + 3, np.int64)
    told[0] = len(keys)
    if len(keys):
        told[1:3] = keys[0], keys[-1]
        told[3:] = keys[(2 * np.arange(each) + 1) * len(keys) // (2 * each)]
    rows = comm.allgather(told, control=True)
    counts = rows[:, 0].copy()
    full = rows[counts > 0]
    if len(full) == 0:
        return Pool(counts, np.empty(0, np.int64), np.empty(0), 0, 0)
    samples, weights = full[:, 3:].reshape(-1), np.repeat(full[:, 0] / each, each)
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
