"""Row-wise top-k: every row of a matrix by itself, rows shared out among the threads."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import bits_type
from sparse_mpi.kernels.cpu.pairs import keep_largest, kth_of
from sparse_mpi.kernels.cpu.tiles import compiled


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
    everywhere = np.arange(matrix.shape[1], dtype=np.int32)
    for row in range(matrix.shape[0]):
        kth, ties = kth_of(matrix[row], magnitude, k)
        keep_largest(everywhere, matrix[row], magnitude, kth, ties, columns[row], values[row])
