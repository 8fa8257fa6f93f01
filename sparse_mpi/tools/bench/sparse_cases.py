"""Data that is sparse already, for benchmarks: keys of each rank, and how they meet those of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparse_mpi.collectives.entries import Entries, combined, joined

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


def filled(fill_in: float) -> Case:
    """Return the case in which the result has ``fill_in`` times the entries of a rank: 1 to P.

    Every rank has some keys that all have, and some that nobody else has.

    Raises:
        ValueError: ``fill_in`` is not in [1, P], or there are too few keys (both when the case is asked for keys).
    """

    def case(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
        if not 1 <= fill_in <= ranks:
            raise ValueError(f"fill-in must be in [1, P], here [1, {ranks}], got {fill_in:g}")
        own = round(m * (fill_in - 1) / max(ranks - 1, 1))
        sets = ranks + 1  # one of all ranks, and one of each: keys with the same remainder
        if max(own, m - own) > n // sets:
            raise ValueError(f"fill-in needs n of at least {sets * max(own, m - own)} keys, got {n}")
        common, alone = np.random.default_rng(6), np.random.default_rng([6, rank])
        keys = [rng.choice(n // sets, size, replace=False) for rng, size in ((common, m - own), (alone, own))]
        return np.sort(np.concatenate([keys[0] * sets, keys[1] * sets + 1 + rank]))

    return case


def stored(folder: Path, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys ``(m,)`` and values ``(m,)`` of one rank, of what the ranks of another job have stored.

    Their files, ``rank-0.npz`` and so on, are dealt to the ranks in turns, and added up.

    Raises:
        ValueError: they are not of numbers by integers that are not negative.
    """
    files = sorted(folder.glob("rank-*.npz"), key=lambda file: int(file.stem.removeprefix("rank-")))
    parts = []
    for file in [files[0], *files[rank::ranks]]:  # the first one tells the dtype, if this rank gets none
        with np.load(file) as arrays:
            keys, values = arrays["keys"].astype(np.int64), arrays["values"]
        if values.shape != keys.shape or keys.min(initial=0) < 0:
            raise ValueError(f"{file} must have a value for each key, and no key below 0")
        parts.append(Entries(keys, values))
    return combined(*joined([parts[0].part(slice(0)), *parts[1:]]), np.add)
