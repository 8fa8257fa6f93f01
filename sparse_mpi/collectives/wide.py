"""Keys of two integers: a dictionary on which all ranks agree numbers them, in the order of the first, then the second.

It is that of `strings` for keys of one length, whole arrays at a time: a key is 16 bytes, whose order as bytes is that
of the integers. Keys are compared as they are, so that no two are taken for one.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import index_dtype
from sparse_mpi.collectives.strings import SAMPLES
from sparse_mpi.comm import Comm
from sparse_mpi.comm.quantiles import Pool, told

BYTES = np.dtype("S16")
SIGN = np.uint64(1 << 63)


def packed(keys: np.ndarray) -> np.ndarray:
    """Return keys ``(m, 2)`` of any integer type as 16 bytes each ``(m,)``, whose order is theirs."""
    numbers = keys.astype(np.uint64 if keys.dtype.kind == "u" else np.int64).view(np.uint64)
    flipped = numbers if keys.dtype.kind == "u" else numbers ^ SIGN
    return np.ascontiguousarray(flipped, ">u8").view(BYTES).reshape(-1)


def unpacked(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return keys ``(m, 2)`` of that type, of which `packed` has made ``keys``."""
    numbers = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2).astype(np.uint64)
    return (numbers if dtype.kind == "u" else (numbers ^ SIGN).view(np.int64)).astype(dtype, copy=False)


class WideDictionary:
    """The distinct keys of all ranks, each of which holds a range of them. Collective to make.

    Args:
        keys: ``(m,)`` of this rank, `packed`, distinct and in their order.
        comm: all ranks.

    Attributes:
        rank: of this process.
        numbers: ``(m,)`` int64, ascending: the place of each of ``keys`` among all distinct ones.
    """

    def __init__(self, keys: np.ndarray, comm: Comm) -> None:
        self._comm = comm
        self.rank: int = comm.rank
        # Owners: each gets the keys of its range, from all ranks.
        sizes = np.diff([0, *np.searchsorted(keys, _first_keys(keys, comm)), len(keys)])
        came, counts = self._exchanged(keys, sizes)
        self._own, places = np.unique(came, return_inverse=True)
        # Numbers: those of an owner follow those of the owner before.
        owned = comm.allgather(np.array([len(self._own)]), control=True)[:, 0]
        self._first = int(owned[: comm.rank].sum())
        found = (places + self._first).astype(index_dtype(int(owned.sum())))
        numbers, _ = comm.alltoallv(found, counts, sizes)
        self.numbers: np.ndarray = numbers.astype(np.int64)

    def strings(self, ranges: np.ndarray) -> np.ndarray:
        """Return this rank's range of keys, `packed`. Collective.

        Args:
            ranges: ``(P, 2)`` int64, the first and the last number that each rank wants.
        """
        ends = np.clip(ranges + [0, 1] - self._first, 0, len(self._own))
        parts = [self._own[start:end] for start, end in ends.tolist()]
        return self._exchanged(np.concatenate(parts), np.array([*map(len, parts)]))[0]

    def _exchanged(self, keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send each rank its part of some keys; return what comes, and how many of each rank."""
        came, lengths = self._comm.alltoallv(keys.view(np.int64).reshape(-1, 2), counts)
        return np.ascontiguousarray(came).view(BYTES).reshape(-1), lengths


def _first_keys(keys: np.ndarray, comm: Comm) -> np.ndarray:
    """Return the keys ``(P - 1)`` at which the ranges of all ranks but the first begin."""
    at = told(np.arange(len(keys)), SAMPLES, comm.rank)[3:]
    shown = np.zeros(2 * SAMPLES + 1, np.int64)
    shown[0] = len(keys)
    if len(keys):
        shown[1:] = keys[at].view(np.int64)
    rows = comm.allgather(shown, control=True)
    full = rows[rows[:, 0] > 0]
    if not len(full):
        return np.zeros(comm.size - 1, BYTES)
    # A sample stands for as many keys as its rank has for each of those it shows.
    samples, weights = np.ascontiguousarray(full[:, 1:]).view(BYTES).reshape(-1), np.repeat(full[:, 0], SAMPLES)
    order = np.argsort(samples, kind="stable")
    pool = Pool(rows[:, 0], np.arange(len(order)), weights[order] / SAMPLES, 0, len(order) - 1)
    first: np.ndarray = samples[order][pool.quantiles(comm.size)]
    return first
