"""``x / sqrt(squares)``, and selection from that."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, bits_type
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import LEAST_SQUARE
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.passes import (
    TILE,
    Found,
    Scan,
    append,
    bits_of,
    compacted,
    counted,
    readable,
    scratch_for,
    widened,
)


def standardized(x: Array, squares: Array) -> Array:
    found, most = np.empty_like(x), np.finfo(squares.dtype).max
    threads.each(lambda lo, hi: _standardized(x[lo:hi], squares[lo:hi], found[lo:hi], most), threads.parts(len(x)))
    return found


@compiled
def _standardized(x, squares, found, most):
    least = squares.dtype.type(LEAST_SQUARE)
    for i in range(x.size):
        found[i] = x[i] / np.sqrt(min(max(squares[i], least), most))


def select_standardized(x: Array, squares: Array, threshold: int, most: int, add: Array | None = None) -> Found | None:
    if add is not None and not x.flags.c_contiguous:
        raise ValueError("x must be contiguous, to be accumulated in place; pass a contiguous copy")
    x, squares = np.require(x, None, ["C", "W"]), np.ascontiguousarray(squares)  # Numba refuses read-only arrays
    limit, largest = bits_type(x).type(threshold), np.finfo(squares.dtype).max

    def with_added(add: Array) -> Scan:
        def scan(lo: int, hi: int, room: int, most: int, indices: Array, values: Array) -> int:
            given = x[lo:hi], squares[lo:hi], add[lo:hi], scratch_for(add), largest
            return _select_standardized(*given, limit, room, most, lo, indices, values)

        return scan

    return compacted(with_added(x[:0] if add is None else readable(add)), with_added(x[:0]), x, most)


@compiled
def _select_standardized(x, squares, add, scratch, largest, threshold, room, most, offset, indices, values):
    count, scores = np.int64(0), np.empty(TILE, x.dtype)
    for lo in range(0, x.size, TILE):
        part, more = x[lo : lo + TILE], widened(add[lo : lo + TILE], scratch)
        for i in range(more.size):
            part[i] += more[i]
        if count > most:
            continue
        found = scores[: part.size]
        _standardized(part, squares[lo : lo + TILE], found, largest)
        if count <= room:
            count = append(found, part, threshold, offset + lo, count, indices, values)
        else:
            count += counted(bits_of(found), threshold)
    return count
