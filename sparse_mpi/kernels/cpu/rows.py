"""Row-wise top-k: every row of a matrix is searched by itself, and the threads share out the rows."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import bits_type
from sparse_mpi.kernels.cpu.pairs import keep_largest, kth_of
from sparse_mpi.kernels.cpu.select import append
from sparse_mpi.kernels.cpu.tiles import bits_of, compiled
from sparse_mpi.kernels.lanes import LANES

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
    count = 0
    for lo in range(0, line.size, LANES):
        part = line[lo : lo + LANES]
        count = append(part, bits_of(part), threshold, lo, count, indices, found)
        if count > indices.size - LANES:
            kth, ties = kth_of(found[:count], magnitude, k)
            keep_largest(indices[:count], found[:count], magnitude, kth, ties, indices[:k], found[:k])
            count = k
            if kth == magnitude:
                break
            threshold = kth + 1  # later entries that tie with the k-th lose, because their indices are higher
    return count
