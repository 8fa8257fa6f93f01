"""Which rank combines the values of which keys: regions of keys that hold about as many entries each.

A region ends at a quantile of the pool of all ranks' entries, which samples tell (`comm/quantiles.py`): `EACH` a region
and rank. So regions are even wherever a rank's keys lie.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.comm import Comm, quantiles
from sparse_mpi.comm.quantiles import Pool
from sparse_mpi.keyed.entries import Entries

EACH = 4  # samples of each rank for each region


def pooled(entries: Entries, comm: Comm) -> Pool:
    """Return the pool of all ranks' entries. Collective: an allgather of control."""
    return quantiles.pooled(entries.keys, EACH * comm.size, comm)


def everything(pool: Pool) -> np.ndarray:
    """Return the region ``(1, 2)`` of all keys, as `regions_of` has regions."""
    return np.array([[pool.lowest, pool.highest]])


def regions_of(pool: Pool, ranks: int) -> np.ndarray:
    """Return the smallest and the largest key of each rank's region, ``(P, 2)`` int64, both inclusive.

    Smallest keys ascend. Of regions with the same smallest key only the last one has entries, see `dealt`.
    """
    lows = np.full(ranks, pool.lowest, np.int64)
    if len(pool.keys):
        lows[1:] = pool.quantiles(ranks)
    following = np.append(lows[1:], pool.highest)
    highs = np.where(following > lows, following - 1, lows)
    highs[-1] = pool.highest
    return np.stack([lows, highs], axis=1)


def dealt(entries: Entries, regions: np.ndarray) -> np.ndarray:
    """Return how many of the entries are in each region ``(P,)`` int64."""
    starts = np.searchsorted(entries.keys, regions[:, 0], side="left")
    return np.diff(np.append(starts, len(entries.keys))).astype(np.int64)
