"""Data that is sparse already, for benchmarks: keys of each rank, and how they meet those of others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Case = Callable[[int, int, int, int], np.ndarray]  # rank, ranks, keys that there are, entries of a rank


def uniform(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw from all keys at random: ranks meet by chance."""
    return np.unique(np.random.default_rng([1, rank]).integers(0, n, m))


def zipf(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw as words of a text: the r-th of all keys with a probability of about 1 / r; hot keys are anywhere."""
    drawn = np.random.default_rng([2, rank]).zipf(1.2, 4 * m)
    return np.unique(drawn[drawn <= n][: 2 * m] * 2654435761 % n)[:m]


def clustered(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw around a few places that all ranks have, as in a mesh or in layers."""
    places = np.random.default_rng(3).integers(0, n, 16)
    rng = np.random.default_rng([3, rank])
    return np.unique((rng.choice(places, m) + (rng.standard_normal(m) * m).astype(np.int64)) % n)


def disjoint(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw from a range of keys for each rank, as of shards of a vocabulary."""
    low, high = (n * (rank + i) // ranks for i in (0, 1))
    return np.unique(np.random.default_rng([4, rank]).integers(low, high, m))


def identical(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw the same keys on all ranks, as the pattern of a matrix."""
    return np.unique(np.random.default_rng(5).integers(0, n, m))


CASES: dict[str, Case] = {case.__name__: case for case in (uniform, zipf, clustered, disjoint, identical)}
