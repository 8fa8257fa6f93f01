"""Bruck's allgather (IEEE TPDS'97) of messages of unknown lengths, in ceil(log2 P) messages a rank.

`Comm.allgatherv` gathers the lengths first, in as many messages; here they travel behind their rows.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, like, namespace, to_host
from sparse_mpi.comm.base import Comm
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.comm.counting import received

COUNT_BYTES = 8
MAX_ROW_BYTES = 16  # unused bytes behind a message, at most


def allgather(rows: Array, comm: Comm) -> tuple[Array, np.ndarray]:
    """Return the rows of all ranks from this one on, and each rank's number of rows, ``(P,)`` int64 in that order."""
    # Every round doubles the number of ranks, gap, whose rows this one has; the last may bring fewer.
    counts, gap = np.array([len(rows)], np.int64), 1
    while gap < comm.size:
        # Exchange: to the rank gap before, from the rank gap behind, the rows of the first `moved` ranks
        moved = min(gap, comm.size - gap)  # ranks whose rows the receiver lacks: all P - gap of them in the last round
        message = _with_counts(rows[: counts[:moved].sum()], counts[:moved])
        came = received(comm.sendrecv(message, (comm.rank - gap) % comm.size, (comm.rank + gap) % comm.size))
        # Unpack: the counts are at the end, where their number tells where they begin
        cut = len(came) - _rows_of_counts(came, moved)
        tail = to_host(namespace(came).ascontiguousarray(came[cut:])).view(np.uint8).reshape(-1)
        # Append: received rows follow own ones, in rank order
        rows = namespace(rows).concatenate([rows, came[:cut]])
        counts = np.concatenate([counts, tail[: COUNT_BYTES * moved].view(np.int64)])
        gap *= 2
    return rows, counts


def _with_counts(rows: Array, counts: np.ndarray) -> Array:
    tail = np.zeros((_rows_of_counts(rows, len(counts)), *rows.shape[1:]), rows.dtype)
    # Written as bytes: rows may be of any dtype, and of any length.
    tail.reshape(-1).view(np.uint8)[: counts.nbytes] = counts.view(np.uint8)
    return namespace(rows).concatenate([rows, like(tail, rows)])


def _rows_of_counts(rows: Array, number: int) -> int:
    return -(-COUNT_BYTES * number // row_bytes(rows))
