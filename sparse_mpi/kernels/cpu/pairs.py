"""Pairs of index and value: add them to a dense vector, and find the largest."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, bits_type, magnitude_bits
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.array import chosen_reaching
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import LANES, lowest, ones, prefetch, reached
from sparse_mpi.kernels.cpu.passes import TILE, append_marked, append_rest, bits_of

MANY = 1 << 13  # values from which on `truncate` has NumPy find the k-th
CANDIDATES = 192  # entries that a row has room for, beyond 3k
MARGIN = 1 / 4  # octaves that the first threshold of a row lies below the k-th magnitude of the row before
WINDOW = 1 << 14  # entries of the vector in which pairs are looked for at once: a flag of each in the first-level cache
ZERO, ONE = np.uint64(0), np.uint64(1)
AHEAD = 128  # entries between the one that is worked on and the one whose cache line is fetched


@compiled
def add_rows(matrix):
    total = matrix[0].copy()
    for lo in range(0, total.size, TILE):
        sums = total[lo : lo + TILE]  # these sums stay in the first-level cache
        for row in range(1, matrix.shape[0]):
            part = matrix[row, lo : lo + TILE]
            for i in range(sums.size):
                sums[i] += part[i]
    return total


@compiled
def fetch_ahead(x, indices, i):
    """Fetch the cache line needed `AHEAD` entries after ``indices[i]``, or the last one.

    Indices are too far apart for the processor's own prefetch.
    """
    prefetch(x, indices[min(i + AHEAD, indices.size - 1)])


@compiled
def add(x, indices, values):
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        x[indices[i]] += values[i]


def add_in_order(x: Array, indices: Array, values: Array, low: int = 0, lengths: np.ndarray | None = None) -> None:
    add(x, indices - low, values)


@compiled
def subtract(x, indices, values):
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        at = indices[i]
        x[at] = x[at] - values[i] if np.isfinite(values[i]) else 0


@compiled
def gather(x, indices):
    values = np.empty(indices.size, x.dtype)
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        values[i] = x[indices[i]]
    return values


@compiled
def clear(x, indices):
    for i in range(indices.size):
        fetch_ahead(x, indices, i)
        x[indices[i]] = 0


@compiled
def mark(bits, indices):
    for i in range(indices.size):
        bits[indices[i] >> 3] |= np.uint8(1 << (indices[i] & 7))


def truncate(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
    return truncate_least(indices, values, k, reuse)[:2] if len(values) > k else (indices, values)


def truncate_least(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array, int]:
    if len(values) <= k:
        return indices, values, int(magnitude_bits(values).min()) if len(values) == k > 0 else 0
    values = np.ascontiguousarray(values)  # `reached` reads 64 in a row
    kept = (indices[:k], values[:k]) if reuse else (np.empty(k, indices.dtype), np.empty(k, values.dtype))
    if len(values) < MANY:
        return *kept, keep_of_few(indices, values, *kept, 0)
    kind = bits_type(values).type
    magnitude = kind(np.iinfo(kind).max)
    kth, ties = _kth_of_many(values, magnitude, k)
    keep_largest(indices, values, magnitude, kind(kth), ties, *kept)
    return *kept, int(kth)


def _kth_of_many(values: Array, magnitude: Any, k: int) -> tuple[Any, int]:
    bits = values.view(bits_type(values)) & magnitude
    bits.partition(len(bits) - k)
    kth, larger = bits[len(bits) - k], bits[len(bits) - k + 1 :]
    return kth, k - int(np.count_nonzero(larger > kth))


@compiled
def _kth_near(values, k, guess):
    """Return the k-th largest magnitude bits of ``values``, and how many of this magnitude are among the k largest.

    Steps away from the ``guess`` double until the k-th lies between two of them; then the interval is halved. Few
    steps suffice near the guess, and each compares 64 values at once.
    """
    bits = bits_of(values)
    magnitude = np.int64(np.iinfo(bits.dtype).max)
    whole = values.size - values.size % LANES
    rest = np.zeros(LANES, values.dtype)
    rest[: values.size - whole] = values[whole:]
    low, high, above = np.int64(0), magnitude, np.int64(0)
    step = np.int64(1) << (15 if bits.itemsize == 4 else 44)  # 1/256 octave
    near, higher, lower = min(max(np.int64(guess), np.int64(1)), high), False, False
    while low < high:
        reaching = ones(reached(rest, 0, near))
        for lo in range(0, whole, LANES):
            reaching += ones(reached(values, lo, near))
        if reaching >= k:
            low, lower = near, True
            if reaching == k:  # the least of these is the k-th
                low = magnitude
                for i in range(bits.size):
                    b = np.int64(bits[i] & bits.dtype.type(magnitude))
                    low = min(low, b if b >= near else magnitude)
                return bits.dtype.type(low), np.int64(k)
        else:
            high, above, higher = near - 1, reaching, True
        if lower and higher:
            near = low + (high - low + 1) // 2
        else:
            near = low + min(step, high - low) if lower else max(high - step, low + 1)
            step = min(2 * step, magnitude // 4)
    return bits.dtype.type(low), k - above


@compiled
def keep_of_few(indices, values, kept_indices, kept_values, guess):
    """Keep as many of the largest as the outputs hold, in order; return their least magnitude bits, see `_kth_near`."""
    kth, ties = _kth_near(values, kept_indices.size, guess)
    magnitude = bits_of(values).dtype.type(np.iinfo(bits_of(values).dtype).max)
    keep_largest(indices, values, magnitude, kth, ties, kept_indices, kept_values)
    return kth


@compiled
def keep_largest(indices, values, magnitude, kth, ties, kept_indices, kept_values):
    """Copy, in order, the pairs above ``kth`` and the first ``ties`` equal to it, until the outputs are full.

    64 pairs at once are compared, then the marked ones copied. Every pair of the rest is written, without branches to
    mispredict; ``count`` moves on only for selected ones. Input and output may be the same.
    """
    bits = bits_of(values)
    count = i = 0
    while kth < magnitude and i + LANES <= values.size:
        mask = reached(values, i, kth + 1)
        tied = reached(values, i, kth) & ~mask if ties > 0 else ZERO
        while tied != ZERO and ties > 0:
            mask |= tied & (~tied + ONE)
            tied &= tied - ONE
            ties -= 1
        while mask != ZERO:
            at = i + lowest(mask)
            kept_indices[count] = indices[at]
            kept_values[count] = values[at]
            count += 1
            mask &= mask - ONE
        i += LANES
    while count < kept_indices.size:
        b = bits[i] & magnitude
        tied = b == kth and ties > 0
        ties -= tied
        kept_indices[count] = indices[i]
        kept_values[count] = values[i]
        count += b > kth or tied
        i += 1


def compress(
    indices: Array, values: Array, chosen: Array | None, count: int | None = None, threshold: int = 0
) -> tuple[Array, Array]:
    if chosen is None and count is not None:
        kept, of_kept = np.empty(count, indices.dtype), np.empty(count, values.dtype)
        _compress_above(indices, values, threshold - 1, kept, of_kept)
        return kept, of_kept
    mask = chosen_reaching(values, chosen, threshold)
    number = int(np.count_nonzero(mask)) if count is None else count
    kept, of_kept = np.empty(number, indices.dtype), np.empty(number, values.dtype)
    _compress(indices, values, mask, kept, of_kept)
    return kept, of_kept


@compiled
def _compress(indices, values, chosen, kept, of_kept):
    """Write every pair, without branches to mispredict, until all chosen ones are written."""
    count = i = 0
    while count < kept.size:
        kept[count], of_kept[count] = indices[i], values[i]
        count += chosen[i]
        i += 1


@compiled
def _compress_above(indices, values, bound, kept, of_kept):
    bits = bits_of(values)
    magnitude = np.iinfo(bits.dtype).max
    count = i = 0
    while count < kept.size:
        kept[count], of_kept[count] = indices[i], values[i]
        count += np.int64(bits[i] & magnitude) > bound
        i += 1


def contains(indices: Array, sought: Array) -> Array:
    return among(indices, sought, np.ones(len(sought), bool))


def among(indices: Array, sought: Array, values: Array) -> Array:
    return _among(indices, sought, values.view(f"i{values.itemsize}")).view(values.dtype)


@compiled
def _among(indices, sought, bits):
    """Clear the ``bits`` of the ``sought`` that are not among ``indices``.

    A window moves over the vector, with a flag for each of ``indices`` in it. Places are compared unsigned: descending
    indices may be missed, but no memory outside is written.
    """
    kept, flags = np.empty_like(bits), np.zeros(WINDOW, np.int8)
    i, j, one, wide = np.uint64(0), np.uint64(0), np.uint64(1), np.uint64(WINDOW)
    while j < sought.size:
        base = sought[j]
        while i < indices.size and indices[i] < base:
            i += one
        first = i
        while i < indices.size and np.uint64(indices[i] - base) < wide:
            flags[np.uint64(indices[i] - base)] = -1
            i += one
        while j < sought.size and np.uint64(sought[j] - base) < wide:
            kept[j] = bits[j] & bits.dtype.type(flags[np.uint64(sought[j] - base)])
            j += one
        while first < i:
            flags[np.uint64(indices[first] - base)] = 0
            first += one
    return kept


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    matrix = np.ascontiguousarray(matrix)
    rows = len(matrix)
    columns, values = np.empty((rows, k), np.int32), np.empty((rows, k), matrix.dtype)
    kind = bits_type(matrix).type
    margin = kind(MARGIN * 2 ** np.finfo(matrix.dtype).nmant)

    def work(lo: int, hi: int) -> None:
        _top_k_rows(matrix[lo:hi], margin, k, columns[lo:hi], values[lo:hi])

    threads.each(work, threads.parts(rows, 1, matrix.shape[1]))
    return columns, values


@compiled
def _top_k_rows(matrix, margin, k, columns, values):
    """Find the k largest of each row, with a first threshold from the row before.

    A little less than a row's k-th magnitude selects candidates of the next, scanned again if they are too few.
    """
    room = 3 * k + CANDIDATES
    indices, found = np.empty(room, np.int32), np.empty(room, matrix.dtype)
    zero = margin - margin
    guess = zero
    for row in range(matrix.shape[0]):
        count = candidates(matrix[row], guess, k, indices, found)
        if count < k:
            count = candidates(matrix[row], zero, k, indices, found)
        kth = keep_of_few(indices[:count], found[:count], columns[row], values[row], guess + margin)
        guess = max(kth - margin, zero)


@compiled
def candidates(line, threshold, k, indices, found):
    """Gather the entries of ``line`` that may be among the k largest, in order; return their number.

    Entries that reach the threshold are appended. If many, only the k largest stay, and the threshold rises above the
    k-th.
    """
    whole, count = line.size - line.size % LANES, np.int64(0)
    for lo in range(0, line.size, LANES):
        if lo < whole:
            count = append_marked(line, lo, reached(line, lo, threshold), 0, count, indices, found)
        else:
            count = append_rest(line, whole, threshold, 0, count, indices, found)
        if count > indices.size - LANES:
            kth = keep_of_few(indices[:count], found[:count], indices[:k], found[:k], threshold)
            count = np.int64(k)
            if kth == np.iinfo(bits_of(line).dtype).max:
                break
            threshold = kth + 1  # later entries that tie with the k-th lose, because their indices are higher
    return count
