"""Buffers of rows: sizes in bytes, ranks' parts, arrays to receive into, headers; and the order of messages."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Counts


def row_bytes(rows: Array) -> int:
    return rows.itemsize if rows.ndim == 1 else rows.itemsize * prod(rows.shape[1:])


def cut(rows: Array, counts: Counts) -> list[Array]:
    ends = list(accumulate(counts.tolist()))
    return [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def empty_rows(like: Array, rows: int) -> Array:
    return namespace(like).empty((rows, *like.shape[1:]), like.dtype)


def header(rows: Array, count: int) -> np.ndarray:
    """Return ``(2,)`` int64 that announces rows: ``count``, and bytes a row."""
    return np.array([count, row_bytes(rows)], np.int64)


def announced_rows(header: np.ndarray, like: Array, source: int) -> int:
    rows, size = header.tolist()
    if size != row_bytes(like):
        raise TypeError(f"send must have rows of {row_bytes(like)} bytes on rank {source} too, got {size}")
    return rows


def peers(rank: int, size: int) -> list[tuple[int, int]]:
    """Return each step's ranks to send to and to receive from."""
    return [((rank + step) % size, (rank - step) % size) for step in range(1, size)]
