"""Statistics of magnitudes: counts, histograms and moments, each in one pass."""

from __future__ import annotations

import math

import numpy as np

from sparse_mpi.arrays import Array, bits_type
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import Moments
from sparse_mpi.kernels.cpu.first_use import compiled, summed
from sparse_mpi.kernels.cpu.passes import (
    TILE,
    bits_of,
    readable,
    scratch_for,
    widened,
)

LN2 = math.log(2)
ONE = 1023 << 52  # exponent of a float64 in [1, 2)
MANTISSA = (1 << 52) - 1
BLOCK = 512  # entries whose mantissas are multiplied before one logarithm is taken: a product below 2^512


def count(x: Array, thresholds: np.ndarray, among: Array | None = None) -> np.ndarray:
    x = x if among is None else x[among]
    kind = bits_type(x)
    x, limits = readable(x), thresholds.astype(kind)

    def work(lo: int, hi: int) -> np.ndarray:
        counts = np.zeros(len(limits), np.int64)
        _count(x[lo:hi], scratch_for(x), limits, counts)
        return counts

    if x.size < threads.MIN_ENTRIES_PER_THREAD:
        return work(0, x.size)
    return np.sum(threads.each(work, threads.parts(x.size)), axis=0)


@compiled
def _count(x, scratch, limits, counts):
    magnitude = limits.dtype.type(np.iinfo(limits.dtype).max)
    for lo in range(0, x.size, TILE):
        part = bits_of(widened(x[lo : lo + TILE], scratch))
        for number in range(limits.size):
            limit, reached = limits[number], 0
            for i in range(part.size):
                reached += (part[i] & magnitude) >= limit
            counts[number] += reached


def histogram(x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
    kind = bits_type(x).type
    x = readable(x)
    magnitude, mask = kind(np.iinfo(kind).max), kind((1 << width) - 1)
    everything = shift == np.iinfo(kind).bits - 1

    def count(lo: int, hi: int) -> np.ndarray:
        counts = np.zeros(1 << width, np.int64)
        low = kind(shift - width)
        if everything:
            _histogram_all(x[lo:hi], scratch_for(x), magnitude, low, counts)
        else:
            _histogram(x[lo:hi], scratch_for(x), magnitude, kind(shift), kind(prefix), low, mask, counts)
        return counts

    first, *others = threads.each(count, threads.parts(x.size))
    for counts in others:
        first += counts
    return first


@compiled
def _histogram_all(x, scratch, magnitude, low, counts):
    for lo in range(0, x.size, TILE):
        part = bits_of(widened(x[lo : lo + TILE], scratch))
        for i in range(part.size):
            counts[(part[i] & magnitude) >> low] += 1


@compiled
def _histogram(x, scratch, magnitude, shift, prefix, low, mask, counts):
    for lo in range(0, x.size, TILE):
        part = bits_of(widened(x[lo : lo + TILE], scratch))
        for i in range(part.size):
            b = part[i] & magnitude
            if b >> shift == prefix:
                counts[(b >> low) & mask] += 1


def moments(x: Array, threshold: int) -> Moments:
    # Each tile is summed by itself and the tiles in order, so that the number of threads changes no bit
    kind = bits_type(x).type
    x = readable(x)
    tiles = np.zeros((-(-x.size // TILE), 6))

    def work(lo: int, hi: int) -> None:
        sums = tiles[lo // TILE : -(-hi // TILE)]
        scratch = scratch_for(x), np.empty(TILE)
        _moments(x[lo:hi], *scratch, kind(np.iinfo(kind).max), kind(threshold), sums)

    threads.each(work, threads.parts(x.size, TILE))
    if not len(tiles):
        return Moments(0, 0.0, 0.0, 0.0, 0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        entries, total, squares, logs, nonzero = tiles[:, :5].sum(axis=0).tolist()
    return Moments(int(entries), total, squares, logs, int(nonzero), float(tiles[:, 5].max()))


@summed
def _moments(x, scratch, reached, magnitude, threshold, sums):
    """Write each tile's `Moments` to ``sums`` ``(tiles, 6)``.

    ``reached`` ``(TILE,)`` is scratch memory for magnitudes, 0 below the threshold.
    """
    for tile in range(sums.shape[0]):
        part = widened(x[tile * TILE : (tile + 1) * TILE], scratch)
        bits, these = bits_of(part), reached[: part.size]
        entries, nonzero, total, squares = 0, 0, 0.0, 0.0
        for i in range(part.size):
            reaches = (bits[i] & magnitude) >= threshold
            these[i] = np.float64(abs(part[i])) if reaches else 0.0
            entries += reaches
        for i in range(part.size):
            total += these[i]
            squares += these[i] * these[i]
            nonzero += these[i] != 0
        sums[tile, 0], sums[tile, 1], sums[tile, 2], sums[tile, 4] = entries, total, squares, nonzero
        sums[tile].view(np.int64)[5] = _largest(these.view(np.int64))
        sums[tile, 3] = _logs(these) if np.isfinite(total) else total


@summed
def _logs(magnitudes):
    """Return the sum of logarithms of nonzero ``magnitudes``, which are overwritten.

    Exponents are summed and mantissas multiplied, so that a block needs only one logarithm.
    """
    bits = magnitudes.view(np.int64)
    logs = 0.0
    for lo in range(0, bits.size, BLOCK):
        part = bits[lo : lo + BLOCK]
        exponents = 0
        for i in range(part.size):
            exponents += (part[i] >> 52) - 1023 if part[i] != 0 else 0
        for i in range(part.size):  # mantissas take the place of the magnitudes, which are not needed any more
            part[i] = (part[i] & MANTISSA) | ONE
        product = 1.0
        mantissas = magnitudes[lo : lo + BLOCK]
        for i in range(mantissas.size):
            product *= mantissas[i]
        logs += exponents * LN2 + math.log(product)
    return logs


@summed
def _largest(bits):
    largest = 0  # integers order NaN's bit patterns last, and their maximum vectorises
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return largest
