"""Quantiles of all ranks' keys: where to cut them into parts of about equal counts.

Each rank samples a few of its keys at equal distances in their order; quantiles are of all samples. Ranks' samples are
offset by multiples of the golden ratio: with the same keys they sample different ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.arrays import Array, like, to_host
from sparse_mpi.comm.base import Comm

GOLDEN = (5**0.5 - 1) / 2


class Pool(NamedTuple):
    """The samples of all ranks' keys, alike on every rank."""

    counts: np.ndarray  # (P,) int64, keys of each rank
    keys: np.ndarray  # (s,) int64, ascending: samples
    weights: np.ndarray  # (s,) float64, how many keys each stands for
    lowest: int  # key of all; 0 if there are none
    highest: int

    @property
    def span(self) -> int:
        return self.highest - self.lowest + 1

    @property
    def range(self) -> np.ndarray:
        return np.array([self.lowest, self.highest])

    def quantiles(self, parts: int) -> np.ndarray:
        """Return the keys ``(parts - 1,)`` int64 at which all but the first part begin; ``keys`` must not be empty."""
        shares = np.cumsum(self.weights) - self.weights / 2  # a sample is the middle of the keys it stands for
        at = np.searchsorted(shares, self.weights.sum() * np.arange(1, parts) / parts)
        return self.keys[np.minimum(at, len(self.keys) - 1)]


def pooled(keys: Array, each: int, comm: Comm) -> Pool:
    """Return the pool of all ranks' keys, ``each`` samples a rank. Collective: an allgather of control.

    ``keys`` ``(m,)`` int32 or int64 are ascending, of one type on all ranks, possibly none.
    """
    return pool_of(comm.allgather(told(keys, each, comm.rank), control=True))


def told(keys: Array, each: int, rank: int) -> np.ndarray:
    """Return a rank's message: the number of ``keys``, the first, the last, and samples; ``(3 + each,)``."""
    # Samples are m / each keys apart; ``start`` is the place of the first, as a share of that distance.
    m, start = len(keys), (rank + 0.5) * GOLDEN % 1
    words = np.zeros(3 + each, keys.dtype)
    words[0] = m
    if m:
        at = np.minimum((np.arange(each) + start) * (m / each), m - 1).astype(np.int64)
        # From a device all sampled keys are copied at once.
        words[1:] = to_host(keys[like(np.concatenate([[0, m - 1], at]), keys)])
    return words


def pool_of(rows: Array) -> Pool:
    rows = rows.astype(np.int64, copy=False)
    counts, each = rows[:, 0].copy(), rows.shape[1] - 3
    full = rows[counts > 0]
    if len(full) == 0:
        return Pool(counts, np.empty(0, np.int64), np.empty(0), 0, 0)
    # Samples of a rank without keys are zeros that mean nothing: only ``full`` rows are pooled.
    samples, weights = full[:, 3:].reshape(-1), np.repeat(full[:, 0] / each, each)
    order = np.argsort(samples, kind="stable")
    return Pool(counts, samples[order], weights[order], int(full[:, 1].min()), int(full[:, 2].max()))
