"""Pairs of index and value: add them to a dense vector, and find the largest of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, bits_type
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.cpu.counts import count
from sparse_mpi.kernels.cpu.lanes import LANES, lowest, ones, prefetch, reached
from sparse_mpi.kernels.cpu.passes import TILE, append_marked, append_rest, bits_of, compiled

# Merge pairs of index and value that came from several ranks, one ascending run after the other.


WINDOW = 1 << 16  # entries of the dense vector summed at once: with its flags it stays in the second-level cache
FEW, RUNS = 1 << 10, 1 << 10  # pairs that are sorted; ascending runs beyond which pairs are sorted, too
FLAGGED = 1 << 3  # entries of the vector for each pair from which on places are counted by flags
DENSE = 1 << 7  # entries of the vector for each pair and each time more that all are merged two by two, for a window
ONE = np.uint64(1)


def merge(indices: Array, values: Array, size: int, low: int = 0) -> tuple[Array, Array]:
    """See `base.Kernels.merge`.

    The pairs are ascending runs, one of each rank, as a rule. Where they are dense, a window moves over the vector; at
    each place all runs are added into it, in their order, and the sums are read out in index order. Where they are less
    dense, indices are flagged there first, so that sums are made where they stay. Two runs, or few pairs for the length
    of the vector, are merged two by two. Few pairs at all, or pairs in no order, are sorted.
    """
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


def merge_runs(runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
    """See `base.Kernels.merge_runs`; those that are merged two by two are not copied before."""
    pairs = sum(indices.size for indices, _ in runs)
    if pairs > FEW and len(runs) <= RUNS and _far(pairs, len(runs), size):
        return _two_by_two(list(runs))
    indices, values = map(np.concatenate, zip(*runs, strict=True))
    return merge(indices, values, size, low)


def _far(pairs: int, runs: int, size: int) -> bool:
    """Tell if there are so few pairs for the length of the vector that runs are merged two by two."""
    return pairs * DENSE * ((runs - 1).bit_length() - 1) < size


def _two_by_two(runs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge the first run with the second, the third with the fourth, and so on, until one is left.

    Integers of equal indices are added as soon as they meet. Where the order of sums matters, pairs of one index stay
    side by side, in the order of their runs, and are added up in the end.
    """
    indices, values = runs[0]
    merge_two: Callable[..., int] = _two_added if values.dtype.kind in "iu" else _two_kept
    rooms: list[tuple[Array, Array]] = []  # for what is merged, in turns
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
    """Merge pairs whose ``order`` is that of their indices; return the number of distinct indices."""
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
    """Write where strictly ascending runs start to ``starts``; return their number, or 0 if there are too many."""
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
    """Merge two runs, and add integers of equal indices; return how many there are."""
    i, j, count, number = np.uint64(0), np.uint64(0), np.uint64(0), to_values.dtype.type
    # Without a branch that depends on indices: which comes next cannot be predicted.
    while i < left.size and j < right.size:
        a, b = left[i], right[j]
        first, second = a <= b, b <= a
        to[count] = min(a, b)
        to_values[count] = left_values[i] * number(first) + right_values[j] * number(second)
        i += np.uint64(first)
        j += np.uint64(second)
        count += np.uint64(1)
    return _rest(left, left_values, right, right_values, to, to_values, i, j, count)


@compiled
def _two_kept(left, left_values, right, right_values, to, to_values):
    """Merge two runs, of equal indices those of the ``left`` one first; return how many there are."""
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
    """Write what is left of two runs, one of which is at its end."""
    for at in range(i, left.size):
        to[count], to_values[count] = left[at], left_values[at]
        count += np.uint64(1)
    for at in range(j, right.size):
        to[count], to_values[count] = right[at], right_values[at]
        count += np.uint64(1)
    return np.int64(count)


@compiled
def _add_up(indices, values):
    """Add up the values of equal indices, which stand side by side, in place; return how many are left."""
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

    ``heads`` moves on to the first pair of each run that is not added yet. ``flags`` has one bit for each entry of the
    window that was added to.
    """
    count = 0
    ends = np.append(heads[1:], indices.size)
    for base in low + np.arange(0, size, WINDOW):
        # Add the pairs of all runs that lie in the window, run after run.
        for run in range(heads.size):
            i = heads[run]
            while i < ends[run] and indices[i] - base < WINDOW:
                at = indices[i] - base
                window[at] += values[i]
                flags[at >> 6] |= ONE << np.uint64(at & 63)
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
    """Merge runs that start at ``heads``; return the number of distinct indices.

    ``heads`` moves on to the first pair of each run that is not merged yet. ``flags`` has one bit for each index of the
    window, and ``before`` the place of the first sum of each word of it. Nothing branches on what bits are set.
    """
    count = 0
    ends = np.append(heads[1:], indices.size)
    stops = heads.copy()
    for base in low + np.arange(0, size, WINDOW):
        # Flag the indices of all runs that lie in the window, and count them.
        flags[:] = 0
        for run in range(heads.size):
            i = heads[run]
            while i < ends[run] and indices[i] - base < WINDOW:
                at = indices[i] - base
                flags[at >> 6] |= ONE << np.uint64(at & 63)
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
                at = indices[i] - base
                lower = (ONE << np.uint64(at & 63)) - ONE
                place = before[at >> 6] + ones(flags[at >> 6] & lower)
                merged_indices[place] = indices[i]
                merged_values[place] += values[i]
            heads[run] = stops[run]
    return count


def add_rows(matrix: Array) -> Array:
    """See `base.Kernels.add_rows`."""
    total = matrix[0].copy()
    _add_rows(matrix, total)
    return total


@compiled
def _add_rows(matrix, total):
    """Add every row but the first, tile by tile, so that sums stay in the first-level cache."""
    for lo in range(0, total.size, TILE):
        sums = total[lo : lo + TILE]
        for row in range(1, matrix.shape[0]):
            part = matrix[row, lo : lo + TILE]
            for i in range(sums.size):
                sums[i] += part[i]


BLOCK = 1 << 13  # values, at least, of which `truncate` looks for the k-th at a time
MANY_BINS, FEW_BINS = 1 << 12, 1 << 7  # of the histograms of `kth_of`, for many values and for few


AHEAD = 128  # entries between the one that is worked on and the one whose cache line is fetched


@compiled
def fetch_ahead(x, indices, i):
    """Have the cache line fetched that is needed `AHEAD` entries after ``indices[i]``, or the last one of all.

    Indices are too far apart for a processor to foresee them, and it waits for memory three quarters of the time.
    """
    prefetch(x, indices[min(i + AHEAD, indices.size - 1)])


def add(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.add`."""
    _add(x, indices, values)


@compiled
def _add(x, indices, values):
    """Add in place."""
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        x[indices[i]] += values[i]


def add_merged(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.add_merged`."""
    _add(x, *merge(indices, values, x.size))


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    _subtract(x, indices, values)


@compiled
def _subtract(x, indices, values):
    """Subtract in place, but set 0 where the value is not finite."""
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        at = indices[i]
        x[at] = x[at] - values[i] if np.isfinite(values[i]) else 0


def gather(x: Array, indices: Array) -> Array:
    """See `base.Kernels.gather`."""
    values = np.empty(len(indices), x.dtype)
    _gather(x, indices, values)
    return values


@compiled
def _gather(x, indices, values):
    """Read the entries one by one."""
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        values[i] = x[indices[i]]


def changes(x: Array, indices: Array, values: Array) -> tuple[Array, Array]:
    """See `base.Kernels.changes`."""
    deltas, worth = np.empty_like(values), np.empty_like(values)
    _changes(x, indices, values, deltas, worth)
    return deltas, worth


@compiled
def _changes(x, indices, values, deltas, worth):
    """Read the entries one by one; roots are taken of all together, by vector instructions."""
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        deltas[i] = values[i] - x[indices[i]]
    for i in range(values.size):
        worth[i] = np.sqrt(np.abs(deltas[i])) * np.sqrt(np.abs(values[i]))


def clear(x: Array, indices: Array) -> None:
    """See `base.Kernels.clear`."""
    _clear(x, indices)


@compiled
def _clear(x, indices):
    """Set to zero in place."""
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        x[indices[i]] = 0


def mark(bits: Array, indices: Array) -> None:
    """See `base.Kernels.mark`."""
    _mark(bits, indices)


@compiled
def _mark(bits, indices):
    """Set the bits one by one."""
    for i in range(indices.size):
        bits[indices[i] >> 3] |= np.uint8(1 << (indices[i] & 7))


def truncate(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
    """See `base.Kernels.truncate`."""
    if len(values) <= k:
        return indices, values
    kind = bits_type(values).type
    magnitude = kind(np.iinfo(kind).max)
    kth, ties = kth_of(values, magnitude, k) if len(values) < BLOCK else _kth_of_many(values, magnitude, k)
    kept = (indices[:k], values[:k]) if reuse else (np.empty(k, indices.dtype), np.empty(k, values.dtype))
    keep_largest(indices, values, magnitude, kind(kth), ties, *kept)
    return kept


def _kth_of_many(values: Array, magnitude: Any, k: int) -> tuple[Any, int]:
    """Return what `kth_of` does for many ``values`` ``(m,)``, k < m.

    NumPy partitions with the processor's vector instructions. It does so block by block, and only the k largest so far
    are held, or the smallest up to the k-th, whichever are fewer: magnitudes take little memory.
    """
    rest = len(values) - k + 1
    number, bits = min(rest, k), values.view(bits_type(values))
    block = max(BLOCK, number)
    held, filled = np.empty(number + min(block, len(values)), bits.dtype), 0
    for lo in range(0, len(values), block):
        added = bits[lo : lo + block]
        both = held[: filled + len(added)]
        np.bitwise_and(added, magnitude, out=both[filled:])
        if len(both) > number:
            both.partition(number - 1 if rest <= k else len(both) - k)
        filled = min(number, len(both))
        if rest > k:
            held[:filled] = both[-filled:]
    kth = held[:filled].max() if rest <= k else held[:filled].min()
    return kth, k - (int(count(values, np.array([kth + 1]))[0]) if kth < magnitude else 0)


@compiled
def kth_of(values, magnitude, k):
    """Return the k-th largest magnitude bits of a few values, and how many of the k largest are equal to it.

    Each pass counts the entries between ``low`` and ``high`` in bins of equal width, and goes on with the bin of the
    k-th, until the bins are one wide.
    """
    bits = bits_of(values)
    low, high = magnitude, bits[0] & magnitude
    for i in range(bits.size):
        low, high = min(low, bits[i] & magnitude), max(high, bits[i] & magnitude)
    bins = FEW_BINS if bits.size < MANY_BINS else MANY_BINS
    counts = np.empty(bins, np.int64)
    while True:
        # The narrowest bins, of a power of two, that cover what is left.
        shift = 0
        while (high - low) >> shift >= bins:
            shift += 1
        counts[:] = 0
        for i in range(bits.size):
            b = bits[i] & magnitude
            if low <= b <= high:
                counts[(b - low) >> shift] += 1
        # From the largest bin down, find the one that holds the k-th; k then counts within it.
        chosen = bins - 1
        while counts[chosen] < k:
            k -= counts[chosen]
            chosen -= 1
        low += chosen << shift
        high = low + min((1 << shift) - 1, high - low)
        if shift == 0:
            return low, k


@compiled
def keep_largest(indices, values, magnitude, kth, ties, kept_indices, kept_values):
    """Copy the pairs above ``kth``, and the first ``ties`` equal to it, in order, until the outputs are full.

    Every pair is written, without a branch that could be mispredicted; ``count`` moves on only for those that stay.
    Input and output may be the same.
    """
    bits = bits_of(values)
    count = i = 0
    while count < kept_indices.size:
        b = bits[i] & magnitude
        tied = b == kth and ties > 0
        ties -= tied
        kept_indices[count] = indices[i]
        kept_values[count] = values[i]
        count += b > kth or tied
        i += 1


def compress(indices: Array, values: Array, chosen: Array, count: int | None = None) -> tuple[Array, Array]:
    """See `base.Kernels.compress`."""
    number = int(np.count_nonzero(chosen)) if count is None else count
    kept, of_kept = np.empty(number, indices.dtype), np.empty(number, values.dtype)
    _compress(indices, values, chosen, kept, of_kept)
    return kept, of_kept


@compiled
def _compress(indices, values, chosen, kept, of_kept):
    """Write every pair, without a branch that could be mispredicted, until all that are chosen are written."""
    count = i = 0
    while count < kept.size:
        kept[count], of_kept[count] = indices[i], values[i]
        count += chosen[i]
        i += 1


def contains(indices: Array, sought: Array) -> Array:
    """See `base.Kernels.contains`."""
    found = np.zeros(len(sought), bool)
    _contains(indices, sought, found)
    return found


@compiled
def _contains(indices, sought, found):
    """Walk along both ascending lists and mark what they have in common."""
    i = j = 0
    while i < indices.size and j < sought.size:
        here, there = indices[i], sought[j]
        found[j] |= here == there
        i += here <= there
        j += there <= here


# Row-wise top-k: every row of a matrix is searched by itself, and the threads share out the rows.


CANDIDATES = 192  # entries that a row has room for, beyond 3k
MARGIN = 1 / 4  # octaves that the first threshold of a row lies below the k-th magnitude of the row before


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    """See `base.Kernels.top_k_rows`."""
    matrix = np.ascontiguousarray(matrix)
    rows = len(matrix)
    columns, values = np.empty((rows, k), np.int32), np.empty((rows, k), matrix.dtype)
    kind = bits_type(matrix).type
    magnitude, margin = kind(np.iinfo(kind).max), kind(MARGIN * 2 ** np.finfo(matrix.dtype).nmant)

    def work(lo: int, hi: int) -> None:
        _top_k_rows(matrix[lo:hi], magnitude, margin, k, columns[lo:hi], values[lo:hi])

    threads.each(work, threads.parts(rows, 1, matrix.shape[1]))
    return columns, values


@compiled
def _top_k_rows(matrix, magnitude, margin, k, columns, values):
    """Find the k largest of each row, with a first threshold taken from the row before.

    Rows resemble each other, so that a little less than the k-th magnitude of one row selects the candidates of the
    next. Only if these are too few is the row scanned a second time, from zero.
    """
    room = 3 * k + CANDIDATES
    indices, found = np.empty(room, np.int32), np.empty(room, matrix.dtype)
    zero = magnitude - magnitude
    guess = zero
    for row in range(matrix.shape[0]):
        count = _candidates(matrix[row], magnitude, guess, k, indices, found)
        if count < k:
            count = _candidates(matrix[row], magnitude, zero, k, indices, found)
        kth, ties = kth_of(found[:count], magnitude, k)
        keep_largest(indices[:count], found[:count], magnitude, kth, ties, columns[row], values[row])
        guess = max(kth - margin, zero)


@compiled
def _candidates(line, magnitude, threshold, k, indices, found):
    """Gather the entries of ``line`` that may be among the k largest, in order; return how many there are.

    Entries that reach the threshold are appended. Whenever they have become many, only the k largest stay, and the
    threshold is raised above the k-th, so that most of the row is compared but not copied.
    """
    count, whole = 0, line.size - line.size % LANES
    for lo in range(0, line.size, LANES):
        if lo < whole:
            count = append_marked(line, lo, reached(line, lo, threshold), 0, count, indices, found)
        else:
            count = append_rest(line, whole, threshold, 0, count, indices, found)
        if count > indices.size - LANES:
            kth, ties = kth_of(found[:count], magnitude, k)
            keep_largest(indices[:count], found[:count], magnitude, kth, ties, indices[:k], found[:k])
            count = k
            if kth == magnitude:
                break
            threshold = kth + 1  # later entries that tie with the k-th lose, because their indices are higher
    return count
