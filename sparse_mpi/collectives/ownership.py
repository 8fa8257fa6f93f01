"""Owners of keys, which combine their values: regions of keys with about equally many entries.

A region ends at a quantile of the samples of all ranks' entries (`algorithms/quantiles.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import expm1, log1p

import numpy as np

from sparse_mpi.algorithms.quantiles import Pool
from sparse_mpi.collectives.entries import Entries

SAMPLES = 32  # samples of each rank: the largest of 64 regions has 1.3 times the mean
WORDS = 3 + SAMPLES
PACKET = 1 << 15  # bytes of a message below which it takes about as long as a shorter one


def regions_of(pool: Pool, ranks: int) -> np.ndarray:
    """Return the smallest and largest key of each rank's region, ``(P, 2)`` int64, inclusive, ascending.

    Of regions with the same smallest key only the last one has entries, see `counts_by_region`.
    """
    lows = np.full(ranks, pool.lowest, np.int64)
    if len(pool.keys):
        lows[1:] = pool.quantiles(ranks)
    following = np.append(lows[1:], pool.highest)
    highs = np.where(following > lows, following - 1, lows)
    highs[-1] = pool.highest
    return np.stack([lows, highs], axis=1)


def counts_by_region(entries: Entries, regions: np.ndarray) -> np.ndarray:
    starts = np.searchsorted(entries.keys, regions[:, 0], side="left")
    return np.diff(np.append(starts, len(entries.keys))).astype(np.int64)


def part_of(entries: Entries, regions: np.ndarray, rank: int) -> Entries:
    counts = counts_by_region(entries, regions)
    end = int(counts[: rank + 1].sum())
    return entries.part(slice(end - int(counts[rank]), end))


def degrees(pool: Pool, each: Callable[[float], float]) -> list[int]:
    """Return the number of groups in each stage of a butterfly, never increasing.

    It is at least two, for messages of about `PACKET` bytes.
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
    """Return the expected number of distinct keys in sets of ``counts``, drawn at random from ``span`` keys."""
    logs = sum(log1p(-min(count / span, 1 - 1e-16)) for count in counts)
    return min(-expm1(logs) * span, sum(counts))
