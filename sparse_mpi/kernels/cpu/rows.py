"""Row-wise top-k: every row of a matrix by itself, rows shared out among the threads."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import bits_type
from sparse_mpi.kernels.cpu.pairs import keep_largest, kth_of
from sparse_mpi.kernels.cpu.select import append
from sparse_mpi.kernels.cpu.tiles import bits_of, compiled
from sparse_mpi.kernels.lanes import LANES

CANDIDATES = 192  # a row has room for, beyond 3k


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    """See `base.Kernels.top_k_rows`."""
    matrix = np.ascontiguousarray(matrix)
    rows = len(matrix)
    columns, values = np.empty((rows, k), np.int32), np.empty((rows, k), matrix.dtype)
    kind = bits_type(matrix).type

    def work(lo: int, hi: int) -> None:
        _top_k_rows(matrix[lo:hi], kind(np.iinfo(kind).max), k, columns[lo:hi], values[lo:hi])

    threads.each(work, threads.parts(rows, 1, matrix.shape[1]))
    return columns, values


@compiled
def _top_k_rows(matrix, magnitude, k, columns, values):
    """Candidates of a row are gathered; whenever they have become many, the k largest stay and set the threshold
    above which more are gathered, so that most of the row is only compared."""
    room = 3 * k + CANDIDATES
    indices, found = np.empty(room, np.int32), np.empty(room, matrix.dtype)
    for row in range(matrix.shape[0]):
        threshold, count = magnitude - magnitude, 0
        for lo in range(0, matrix.shape[1], LANES):
            part = matrix[row, lo : lo + LANES]
            count = append(part, bits_of(part), threshold, lo, count, indices, found)
            if count > room - LANES:
                kth, ties = kth_of(found[:count], magnitude, k)
                keep_largest(indices[:count], found[:count], magnitude, kth, ties, indices, found)
                count = k
                if kth == magnitude:
                    break
                threshold = kth + 1  # what ties with the k-th from here on has a higher index
        kth, ties = kth_of(found[:count], magnitude, k)
        keep_largest(indices[:count], found[:count], magnitude, kth, ties, columns[row], values[row])
