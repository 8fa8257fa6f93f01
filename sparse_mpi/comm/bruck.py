"""Bruck's allgather (IEEE TPDS'97) of messages whose lengths only their senders know, in ceil(log2 P) messages a rank.

`Comm.allgatherv` gathers the lengths first, in as many messages again; here they travel behind the rows they count.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, like, namespace, to_host
from sparse_mpi.comm.base import Comm
from sparse_mpi.comm.buffers import row_bytes

COUNT = 8  # bytes of a length
WIDEST = 16  # bytes of a row: behind a message up to so many are not used


def allgather(rows: Array, comm: Comm) -> tuple[Array, np.ndarray]:
    """The rows of all ranks from this one on, and how many came from each: ``(P,)`` int64 in that order.

    In the round with that gap, a rank that holds the rows of ``gap`` ranks fetches those of as many more, untouched.
    """
    counts, gap = np.array([len(rows)], np.int64), 1
    while gap < comm.size:
        held = min(gap, comm.size - gap)
        message = _with_counts(rows[: counts[:held].sum()], counts[:held])
        came = comm.sendrecv(message, (comm.rank - gap) % comm.size, (comm.rank + gap) % comm.size)
        assert came is not None
        cut = len(came) - _rows_of_counts(came, held)
        tail = to_host(namespace(came).ascontiguousarray(came[cut:])).view(np.uint8).reshape(-1)
        rows = namespace(rows).concatenate([rows, came[:cut]])
        counts = np.concatenate([counts, tail[: COUNT * held].view(np.int64)])
        gap *= 2
    return rows, counts


def _with_counts(rows: Array, counts: np.ndarray) -> Array:
    """``rows``, and behind them ``counts`` in as many rows as they need."""
    tail = np.zeros((_rows_of_counts(rows, len(counts)), *rows.shape[1:]), rows.dtype)
    tail.reshape(-1).view(np.uint8)[: counts.nbytes] = counts.view(np.uint8)
    return namespace(rows).concatenate([rows, like(tail, rows)])


def _rows_of_counts(rows: Array, number: int) -> int:
    return -(-COUNT * number // row_bytes(rows))
