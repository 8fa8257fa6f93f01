"""Sums of data that is sparse already: the keys of each rank by case, and the bytes of an algorithm for them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparse_mpi import collectives
from sparse_mpi.collectives.choice import Choice
from sparse_mpi.collectives.entries import Entries, combined, joined
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.world import World

PAIR, VALUE = 16, 8  # bytes of a key and its value, and of a value
HELD = 3  # bytes in memory for each received one: entries unpacked, samples sorted
PILOT = 8  # fraction of the ranks that is counted first, without an earlier count, to estimate memory
Case = Callable[[int, int, int, int], np.ndarray]  # rank, ranks, range of keys, entries of a rank


def uniform(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw from all keys at random: ranks meet by chance."""
    return np.unique(np.random.default_rng([1, rank]).integers(0, n, m))


def zipf(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw as words of a text: the r-th of all keys with a probability of about 1 / r; hot keys are anywhere."""
    drawn = np.random.default_rng([2, rank]).zipf(1.2, 4 * m)
    return np.unique(drawn[drawn <= n][: 2 * m] * 2654435761 % n)[:m]


def clustered(rank: int, ranks: int, n: int, m: int) -> np.ndarray:
    """Draw around a few places common to all ranks, as in a mesh or in layers."""
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
    """Return the case with ``fill_in`` times a rank's entries in its result; it raises ValueError beyond 1 to P."""

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
    """Return keys and values ``(m,)`` of the files that are dealt to a rank. Raises ValueError: they are wrong."""
    files = sorted(folder.glob("rank-*.npz"), key=lambda file: int(file.stem.removeprefix("rank-")))
    parts = []
    for file in [files[0], *files[rank::ranks]]:  # the first file has the dtype, if this rank gets none
        with np.load(file) as arrays:
            keys, values = arrays["keys"].astype(np.int64), arrays["values"]
        if values.shape != keys.shape or keys.min(initial=0) < 0:
            raise ValueError(f"{file} must have a value for each key, and no key below 0")
        parts.append(Entries(keys, values))
    return combined(*joined([parts[0].part(slice(0)), *parts[1:]]), np.add)


@dataclass(frozen=True)
class KeyedVolume:
    """The counted traffic of one rank in a sum of float64 values: bytes, and messages."""

    case: str
    algorithm: str
    chosen: str  # the choice of ``auto``; the algorithm's name otherwise
    ranks: int
    n: int
    entries: int  # entries of all ranks
    result: int
    sent: float  # payload, mean over ranks
    most: int  # payload of the rank that sends most
    control: int  # most bytes of announcements
    messages: int  # most messages, control included
    received: int  # payload, at most

    @property
    def dense(self) -> float:
        """Return a rank's bytes for a dense buffer of n values in a ring: the least."""
        return 2 * VALUE * self.n * (self.ranks - 1) / self.ranks

    @property
    def pairs(self) -> float:
        """Return a rank's bytes, on average, to give all pairs to all, as a pickled `allgather` does."""
        return PAIR * self.entries * (self.ranks - 1) / self.ranks

    def gigabytes(self, ranks: int) -> float:
        """Estimate the memory that `count` needs for more ranks, in GB, if each rank's share grows as their square."""
        return 1e-9 * HELD * ranks * (self.received + self.control) * (ranks / self.ranks) ** 2


def count(name: str, case: Case, algorithm: str, ranks: int, n: int, entries: int) -> KeyedVolume:
    """Sum up the ranks' data in a case, and count. Raises ValueError: the algorithm refuses the data."""
    chosen: list[Choice] = []

    def run(comm: Comm) -> tuple[Traffic, int, int]:
        keys = case(comm.rank, ranks, n, entries)
        before = comm.traffic.copy()
        tell = chosen.append if comm.rank == 0 else None
        found, _ = collectives.allreduce((keys, np.ones(len(keys))), comm=comm, algorithm=algorithm, tell=tell)
        return comm.traffic - before, len(keys), len(found)

    traffic, held, results = zip(*World(ranks).run(run), strict=True)
    return KeyedVolume(
        name,
        algorithm,
        chosen[0].algorithm if chosen else algorithm,
        ranks,
        n,
        entries=sum(held),
        result=results[0],
        sent=statistics.mean(t.sent for t in traffic),
        most=max(t.sent for t in traffic),
        control=max(t.control for t in traffic),
        messages=max(t.messages for t in traffic),
        received=max(t.received for t in traffic),
    )


def count_within(
    most_gigabytes: float, case: str, algorithm: str, ranks: int, n: int, entries: int, before: KeyedVolume | None
) -> KeyedVolume:
    """Count; ``before`` was counted on fewer ranks. Raises ValueError: too much memory, or the algorithm refuses."""

    def of(number: int) -> KeyedVolume:
        return count(case, CASES[case], algorithm, number, n, entries)

    if before is None and ranks >= PILOT**2:
        before = of(ranks // PILOT)
    needed = before.gigabytes(ranks) if before else 0.0
    if needed > most_gigabytes:
        raise ValueError(f"may need {needed:.0f} GB, more than --most-gigabytes {most_gigabytes:g}")
    return of(ranks)
