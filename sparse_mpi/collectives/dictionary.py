"""A dictionary common to all ranks: it numbers keys that are no integers of 64 bits, in order.

Each rank owns a range of keys, between quantiles of samples; it numbers them, and sends each rank its result's keys.
Two ranks send each other all keys: no more bytes, and fewer messages.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from sparse_mpi.algorithms.quantiles import Pool, told
from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.comm import Comm

SAMPLES = 32  # keys that a rank shows to all
TOGETHER = 2  # ranks up to which all keys go to all


class Keys(Protocol):
    """A type of keys, in a list or an array: `strings.StringKeys`, or `wide.WideKeys`.

    `sample` may cut keys off; `unpacked` returns all messages' keys, and each one's number; `distinct` returns keys in
    order, and each one's place; `shown` are keys as in results.
    """

    def sample(self, keys: Any, places: np.ndarray) -> Any: ...
    def packed(self, keys: Any) -> np.ndarray: ...
    def unpacked(self, buffer: Array, lengths: np.ndarray) -> tuple[Any, np.ndarray]: ...
    def distinct(self, keys: Any) -> tuple[Any, np.ndarray]: ...
    def shown(self, keys: Any) -> np.ndarray: ...


class Dictionary:
    """All ranks' distinct keys; a rank holds a range, or all. Collective to make.

    `numbers` ``(m,)`` int64, ascending, are the places of ``keys`` among these.
    """

    def __init__(self, keys: Any, kind: Keys, comm: Comm) -> None:
        self._comm, self._kind = comm, kind
        self.rank: int = comm.rank
        if comm.size <= TOGETHER:
            lengths = comm.allgather(np.array([len(message := kind.packed(keys))]), control=True)[:, 0]
            came, counts = kind.unpacked(*comm.allgatherv(message, lengths))
            self._own, places = kind.distinct(came)
            self.numbers: np.ndarray = np.split(places, np.cumsum(counts))[comm.rank]
            return
        # Owners: each gets the keys of its range, from all ranks.
        ends = [0, *self._starts(keys), len(keys)]
        came, counts = self._exchanged([keys[start:end] for start, end in pairwise(ends)])
        self._own, places = kind.distinct(came)
        # Numbers: an owner's follow the previous owner's.
        owned = comm.allgather(np.array([len(self._own)]), control=True)[:, 0]
        self._first = int(owned[: comm.rank].sum())
        found = (places + self._first).astype(index_dtype(int(owned.sum())))
        numbers, _ = comm.alltoallv(found, counts, np.diff(ends))
        self.numbers = numbers.astype(np.int64)

    def strings(self, ranges: np.ndarray) -> np.ndarray:
        """Return this rank's range of keys. Collective."""
        if self._comm.size <= TOGETHER:
            start, end = (ranges[self.rank] + [0, 1]).tolist()
            return self._kind.shown(self._own[start:end])
        ends = np.clip(ranges + [0, 1] - self._first, 0, len(self._own)).tolist()
        keys, _ = self._exchanged([self._own[start:end] for start, end in ends])
        return self._kind.shown(keys)

    def _exchanged(self, parts: list[Any]) -> tuple[Any, np.ndarray]:
        messages = [self._kind.packed(part) for part in parts]
        received = self._comm.alltoallv(np.concatenate(messages), np.array([*map(len, messages)]))
        return self._kind.unpacked(*received)

    def _starts(self, keys: Any) -> list[int]:
        comm, kind = self._comm, self._kind
        at = told(np.arange(len(keys)), min(len(keys), SAMPLES), comm.rank)[3:]
        message = kind.packed(kind.sample(keys, at))
        rows = comm.allgather(np.array([len(keys), len(message)]), control=True)
        shown, each = kind.unpacked(*comm.allgatherv(message, rows[:, 1]))
        samples, places = kind.distinct(shown)
        if not len(samples):
            return [0] * (comm.size - 1)
        # A sample stands for its rank's keys divided by its rank's samples.
        weights = np.bincount(places, np.repeat(rows[:, 0] / np.maximum(each, 1), each))
        pool = Pool(rows[:, 0], np.arange(len(samples)), weights, 0, len(samples) - 1)
        return [bisect_left(keys, samples[place]) for place in pool.quantiles(comm.size).tolist()]
