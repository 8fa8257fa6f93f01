"""Keys and values, the common form of sparse data in `sparse_mpi.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, to_host

ADDED = tuple(map(np.dtype, ("float32", "float64", "int32", "int64", "uint64")))  # types of values that a kernel adds
COLUMNS = 4  # numbers of a value up to which each is added up by itself
# Bytes of a longdouble that hold nothing: all but ten where it has 64 bits of precision
PADDING = np.dtype(np.longdouble).itemsize - 10 if np.finfo(np.longdouble).nmant == 63 else 0


class Entries(NamedTuple):
    """Values with distinct keys, in key order."""

    keys: np.ndarray  # (m,) int64, ascending
    values: np.ndarray  # (m, ...)

    def part(self, chosen: slice | np.ndarray) -> Entries:
        return Entries(self.keys[chosen], self.values[chosen])


def joined(parts: Sequence[Entries]) -> Entries:
    return Entries(np.concatenate([part.keys for part in parts]), np.concatenate([part.values for part in parts]))


def parted(entries: Entries, counts: np.ndarray) -> list[Entries]:
    return [entries.part(slice(*ends)) for ends in pairwise([0, *counts.cumsum().tolist()])]


def combined(keys: np.ndarray, values: np.ndarray, op: np.ufunc) -> Entries:
    """Return entries of any keys ``(m,)``; ``op`` combines values of equal keys, in NumPy's order."""
    if len(keys) < 2 or (keys[1:] > keys[:-1]).all():
        return Entries(keys, values)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    heads = _heads(keys)
    if len(heads) == len(keys):
        return Entries(keys, values)
    return Entries(keys[heads], op.reduceat(values, heads, axis=0, dtype=values.dtype))


class Runs:
    """Places of equal keys among several ranks' keys ``(m,)``; ``keys`` ``(u,)`` are distinct and ascending.

    Values are combined in their order, ``(a op b) op c``, so that sums have the same bits everywhere.
    """

    def __init__(self, keys: np.ndarray) -> None:
        # Bring equal keys side by side: merging ascending runs, a stable sort does no more.
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        heads = _heads(ordered)
        self.keys, self._first = ordered[heads], order[heads]
        # Second, third and later values of a key, and the places of their keys.
        counts = np.diff(heads, append=len(keys))
        self._more = []
        for nth in range(1, int(counts.max(initial=1))):
            at = np.flatnonzero(counts > nth)
            self._more.append((at, order[heads[at] + nth]))

    def combined(self, values: Array, op: np.ufunc) -> np.ndarray:
        found = values[self._first]
        for at, chosen in self._more:
            found[at] = op(found[at], values[chosen])
        return found


def merged(parts: Sequence[Entries], op: np.ufunc) -> Entries:
    """Return the entries of ``parts``, at least one; values of equal keys are combined in that order."""
    full = [part for part in parts if len(part.keys)]
    if len(full) < 2:
        return full[0] if full else parts[0]
    if op is not np.add or full[0].values.dtype not in ADDED or full[0].values.ndim > 1:
        return merged_runs(joined(full), op)
    low, high = min(int(part.keys[0]) for part in full), max(int(part.keys[-1]) for part in full)
    return Entries(*map(to_host, kernels.of(full[0].values).merge_runs(full, high - low + 1, low)))


def merged_runs(entries: Entries, op: np.ufunc) -> Entries:
    keys, values = entries
    if len(keys) and op is np.add and values.dtype in ADDED and prod(values.shape[1:]) <= COLUMNS:
        low, high = int(keys.min()), int(keys.max())
        columns = map(np.ascontiguousarray, values.reshape(len(keys), -1).T)
        found = [kernels.of(values).merge(keys, column, high - low + 1, low) for column in columns]
        sums = to_host(found[0][1]) if len(found) == 1 else np.stack([to_host(each) for _, each in found], axis=1)
        return Entries(to_host(found[0][0]), sums.reshape(-1, *values.shape[1:]))
    runs = Runs(keys)
    return Entries(runs.keys, runs.combined(values, op))


def canonical(values: np.ndarray) -> np.ndarray:
    """Return values with the same bytes if equal: the last six of an 80-bit longdouble are undefined."""
    if values.dtype.type not in (np.longdouble, np.clongdouble) or not PADDING:
        return values
    made = np.array(values, order="C")
    numbers = made.reshape(-1).view(np.uint8).reshape(-1, np.dtype(np.longdouble).itemsize)
    numbers[:, -PADDING:] = 0
    return made


def nonzero(entries: Entries) -> Entries:
    values = entries.values
    return entries.part((values != 0).any(axis=tuple(range(1, values.ndim))))


def _heads(keys: np.ndarray) -> np.ndarray:
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return np.flatnonzero(first)
