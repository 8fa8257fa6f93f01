"""Pairs of index and value: add them to a dense vector, and find the largest of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import bits_type
from sparse_mpi.kernels.cpu.counts import count
from sparse_mpi.kernels.cpu.tiles import bits_of, compiled

BLOCK = 1 << 13  # values, at least, of which `truncate` looks for the k-th at a time
MANY_BINS, FEW_BINS = 1 << 12, 1 << 7  # of the histograms of `kth_of`, for many values and for few


def add(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.add`."""
    _add(x, indices, values)


@compiled
def _add(x, indices, values):
    """Add in place."""
    for i in range(indices.size):
        x[indices[i]] += values[i]


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    _subtract(x, indices, values)


@compiled
def _subtract(x, indices, values):
    """Subtract in place, but set 0 where the value is not finite."""
    for i in range(indices.size):
        at = indices[i]
        x[at] = x[at] - values[i] if np.isfinite(values[i]) else 0


def gather(x: Array, indices: Array) -> Array:
    """See `base.Kernels.gather`. Without checks of the indices more reads are under way at a time than in NumPy."""
    values = np.empty(len(indices), x.dtype)
    _gather(x, indices, values)
    return values


@compiled
def _gather(x, indices, values):
    """Read the entries one by one."""
    for i in range(indices.size):
        values[i] = x[indices[i]]


def clear(x: Array, indices: Array) -> None:
    """See `base.Kernels.clear`."""
    _clear(x, indices)


@compiled
def _clear(x, indices):
    """Set to zero in place."""
    for i in range(indices.size):
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
