"""Merge pairs of index and value of several ranks, one ascending run after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import lowest, ones

WINDOW = 1 << 16  # entries of the dense vector summed at once: with its flags it stays in the second-level cache
FEW, RUNS = 1 << 10, 1 << 10  # pairs that are sorted; ascending runs beyond which pairs are sorted, too
FLAGGED = 1 << 3  # entries of the vector for each pair from which on places are counted by flags
DENSE = 1 << 7  # entries of the vector for each pair and each time more that all are merged two by two, for a window
ONE, SHIFT, LOW = np.uint64(1), np.uint64(6), np.uint64(63)  # places of bits in words of 64


def merge(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array]:
    # The pairs are ascending runs, one of each rank, as a rule. Where they are dense, a window moves over the vector:
    # there all runs are added into it, in their order, and the sums are read out in index order. Where they are less
    # dense, indices are flagged first, so that sums are made where they stay. Two runs, or few pairs for the length of
    # the vector, are merged two by two. Few pairs at all, or pairs in no order, are sorted.
    starts = np.empty(RUNS + 1, np.int64)
    runs = _runs(indices, starts) if indices.size > FEW else 0
    if runs and _far(indices.size, runs, size):
        ends = [*starts[1:runs].tolist(), indices.size]
        each = [slice(*piece) for piece in zip(starts[:runs].tolist(), ends, strict=True)]
        return _two_by_two([(indices[piece], values[piece]) for piece in each])
    merged, sums = np.empty_like(indices), np.empty_like(values)
    if runs:
        flags, before = np.zeros((2, WINDOW // 64), np.uint64)
        if indices.size * FLAGGED < size:
            before = before.view(np.int64)
            count = _merge_flagged(indices, values, starts[:runs], low, size, flags, before, merged, sums)
        else:
            window = np.full(WINDOW, -0.0, values.dtype)  # adding to -0.0 changes no value, not even 0 or -0
            count = _merge_dense(indices, values, starts[:runs], low, size, window, flags, merged, sums)
    else:
        count = _merge_ordered(indices, values, np.argsort(indices, kind="stable"), merged, sums)
    return merged[:count], sums[:count]


def merge_loosely(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array, None]:
    return *merge(indices, values, size, low), None


def merge_runs(runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
    # Runs that are merged two by two are not copied before
    pairs = sum(indices.size for indices, _ in runs)
    if pairs > FEW and len(runs) <= RUNS and _far(pairs, len(runs), size):
        return _two_by_two(list(runs))
    indices, values = map(np.concatenate, zip(*runs, strict=True))
    return merge(indices, values, size, low)


def _far(pairs: int, runs: int, size: int) -> bool:
    return pairs * DENSE * ((runs - 1).bit_length() - 1) < size


def _two_by_two(runs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge neighbouring runs, two by two, until one is left.

    Two runs, and integers, are added at once where indices are equal; other pairs of one index stay side by side, in
    the order of their runs, and are added up in the end.
    """
    indices, values = runs[0]
    merge_two: Callable[..., int] = _two_added if len(runs) == 2 or values.dtype.kind in "iu" else _two_kept
    rooms: list[tuple[Array, Array]] = []  # room for merged runs, used in turns
    while len(runs) > 1 or not rooms:
        pairs = sum(part.size for part, _ in runs)
        room = rooms.pop(0) if len(rooms) == 2 else (np.empty(pairs, indices.dtype), np.empty(pairs, values.dtype))
        at, found = 0, []
        for left, right in zip_longest(runs[::2], runs[1::2], fillvalue=(indices[:0], values[:0])):
            count = merge_two(*left, *right, room[0][at:], room[1][at:])
            found.append((room[0][at : at + count], room[1][at : at + count]))
            at += count
        rooms, runs = [*rooms, room], found
    indices, values = runs[0]
    count = indices.size if merge_two is _two_added else _add_up(indices, values)
    return indices[:count], values[:count]


@compiled
def _merge_ordered(indices, values, order, merged_indices, merged_values):
    count = 0
    for i in range(order.size):
        index, value = indices[order[i]], values[order[i]]
        if count > 0 and merged_indices[count - 1] == index:
            merged_values[count - 1] += value
        else:
            merged_indices[count] = index
            merged_values[count] = value
            count += 1
    return count


@compiled
def _runs(indices, starts):
    """Write the starts of strictly ascending runs to ``starts``; return their number, or 0 if too many."""
    starts[0], count = 0, 1
    for i in range(1, indices.size):
        if indices[i] <= indices[i - 1]:
            if count == starts.size - 1:
                return 0
            starts[count] = i
            count += 1
    return count


@compiled
def _two_added(left, left_values, right, right_values, to, to_values):
    i, j, count, nothing = np.uint64(0), np.uint64(0), np.uint64(0), to_values.dtype.type(-0.0)
    # Without a branch that depends on indices: which comes next cannot be predicted.
    while i < left.size and j < right.size:
        a, b, x, y = left[i], right[j], left_values[i], right_values[j]
        first, second = a <= b, b <= a
        to[count] = min(a, b)
        to_values[count] = (x if first else nothing) + (y if second else nothing)
        i += np.uint64(first)
        j += np.uint64(second)
        count += np.uint64(1)
    return _rest(left, left_values, right, right_values, to, to_values, i, j, count)


@compiled
def _two_kept(left, left_values, right, right_values, to, to_values):
    """Merge two runs, the ``left`` one first at equal indices; return the number of pairs."""
    i, j, count = np.uint64(0), np.uint64(0), np.uint64(0)
    while i < left.size and j < right.size:
        a, b, x, y = left[i], right[j], left_values[i], right_values[j]
        first = a <= b
        to[count] = a if first else b
        to_values[count] = x if first else y
        i += np.uint64(first)
        j += np.uint64(not first)
        count += np.uint64(1)
    return _rest(left, left_values, right, right_values, to, to_values, i, j, count)


@compiled
def _rest(left, left_values, right, right_values, to, to_values, i, j, count):
    for at in range(i, left.size):
        to[count], to_values[count] = left[at], left_values[at]
        count += np.uint64(1)
    for at in range(j, right.size):
        to[count], to_values[count] = right[at], right_values[at]
        count += np.uint64(1)
    return np.int64(count)


@compiled
def _add_up(indices, values):
    count = 0
    for i in range(1, indices.size):
        if indices[i] == indices[count]:
            values[count] += values[i]
        else:
            count += 1
            indices[count], values[count] = indices[i], values[i]
    return count + 1


@compiled
def _merge_dense(indices, values, heads, low, size, window, flags, merged_indices, merged_values):
    """Merge runs that start at ``heads``; return the number of distinct indices.

    ``heads`` moves on to each run's first pair not added yet. ``flags`` marks the entries of the window that were added
    to, a bit each. Places are compared unsigned: a run ends at an index out of range, and nothing outside is written.
    """
    count, wide = 0, np.uint64(WINDOW)
    ends = np.append(heads[1:], indices.size)
    for base in low + np.arange(0, size, WINDOW):
        # Add the pairs of all runs that lie in the window, run after run.
        for run in range(heads.size):
            i = heads[run]
            while i < ends[run] and np.uint64(indices[i] - base) < wide:
                at = np.uint64(indices[i] - base)
                window[at] += values[i]
                flags[at >> SHIFT] |= ONE << (at & LOW)
                i += 1
            heads[run] = i
        # Read out the entries that were added to, and clear the window.
        for word in range(flags.size):
            mask = flags[word]
            flags[word] = 0
            while mask != 0:
                at = (word << 6) + lowest(mask)
                merged_indices[count] = base + at
                merged_values[count] = window[at]
                window[at] = -0.0
                count += 1
                mask &= mask - ONE
    return count


@compiled
def _merge_flagged(indices, values, heads, low, size, flags, before, merged_indices, merged_values):
    """Do as `_merge_dense`, with sums made where they stay.

    ``flags`` has one bit for each index of the window, ``before`` the place of each word's first sum.
    """
    count, wide = 0, np.uint64(WINDOW)
    ends = np.append(heads[1:], indices.size)
    stops = heads.copy()
    for base in low + np.arange(0, size, WINDOW):
        # Flag the indices of all runs that lie in the window, and count them.
        flags[:] = 0
        for run in range(heads.size):
            i = heads[run]
            while i < ends[run] and np.uint64(indices[i] - base) < wide:
                at = np.uint64(indices[i] - base)
                flags[at >> SHIFT] |= ONE << (at & LOW)
                i += 1
            stops[run] = i
        first = count
        for word in range(flags.size):
            before[word] = count
            count += ones(flags[word])
        # Add the pairs at the places of their indices, run after run.
        merged_values[first:count] = -0.0
        for run in range(heads.size):
            for i in range(heads[run], stops[run]):
                at = np.uint64(indices[i] - base)
                lower = (ONE << (at & LOW)) - ONE
                place = np.uint64(before[at >> SHIFT] + ones(flags[at >> SHIFT] & lower))
                merged_indices[place] = indices[i]
                merged_values[place] += values[i]
            heads[run] = stops[run]
    return count
