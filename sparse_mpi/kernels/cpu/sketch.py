"""Sketch a vector by signed sums of its entries, from which its norm and that of a sum of vectors can be estimated."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import SKETCH, SKETCHED_ROWS
from sparse_mpi.kernels.cpu.levels import mixed
from sparse_mpi.kernels.cpu.tiles import compiled

CHUNK = SKETCHED_ROWS * SKETCH  # entries added up by themselves, so that the number of threads changes no bit


def sketch(x: Array, seed: int) -> np.ndarray:
    """See `base.Kernels.sketch`."""
    x = np.ascontiguousarray(x)
    partial = np.zeros((-(-x.size // CHUNK), SKETCH))
    threads.each(
        lambda lo, hi: _sketch(x[lo:hi], np.int64(lo), np.uint32(seed), partial[lo // CHUNK : -(-hi // CHUNK)]),
        threads.parts(x.size, CHUNK),
    )
    return partial.sum(axis=0)


@compiled
def _sketch(x, first, seed, partial):
    """Add the signed entries of each chunk to a row of ``partial``; ``first`` is the index of ``x[0]``.

    Entries are taken in rows of `SKETCH`. The positions in a row are rotated by a hash of the row's number, and signs
    are the bits of hashes that 32 rows have in common.
    """
    hashes = np.empty(SKETCH, np.uint32)
    for lo in range(0, x.size, SKETCH):
        row, number = x[lo : lo + SKETCH], (first + lo) // SKETCH
        bit = np.uint32(number % 32)
        if bit == 0:
            start = np.uint32(number // 32 * SKETCH)
            for i in range(SKETCH):
                hashes[i] = mixed(mixed(start + np.uint32(i)) ^ seed)
        by = np.int64(mixed(mixed(np.uint32(number)) ^ ~seed) % np.uint32(SKETCH))
        sums, room = partial[lo // CHUNK], SKETCH - by
        _add_signed(sums[by:], row[:room], hashes[:room], bit)
        _add_signed(sums[:by], row[room:], hashes[room:], bit)


@compiled
def _add_signed(sums, entries, hashes, bit):
    """Add each entry to its sum, or subtract it where this bit of its hash is set."""
    for i in range(entries.size):
        sums[i] += entries[i] * np.float32(1 - 2 * np.int32((hashes[i] >> bit) & np.uint32(1)))
