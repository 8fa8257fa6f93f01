"""A `Comm` whose ranks are numbered from another one on: what rank 0 was to do is done by rank ``first``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Comm, Counts


class Rotated:
    """The calls of ``comm`` that a reduction makes, with rank ``first`` as number 0, ``first + 1`` as 1 and so on."""

    def __init__(self, comm: Comm, first: int) -> None:
        self.size = comm.size
        self.rank = (comm.rank - first) % comm.size
        self._comm, self._first = comm, first % comm.size

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        """See `Comm.sendrecv`."""
        there = [None if number is None else (number + self._first) % self.size for number in (dest, source)]
        return self._comm.sendrecv(send, *there)

    def allgather(self, send: Array, control: bool = False) -> Array:
        """See `Comm.allgather`."""
        gathered = self._comm.allgather(send, control)
        return namespace(gathered).roll(gathered, -self._first, axis=0)

    def allgatherv(self, send: Array, counts: Any = None) -> tuple[Array, Counts]:
        """See `Comm.allgatherv`."""
        rows, by_rank = self._comm.allgatherv(send, None if counts is None else np.roll(counts, self._first))
        return self._turned(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def alltoallv(self, send: Array, counts: Any, expected: Any = None) -> tuple[Array, Counts]:
        """See `Comm.alltoallv`."""
        last = int(np.sum(counts[: self.size - self._first]))  # what goes to ranks first, first + 1, ... P - 1
        told = None if expected is None else np.roll(expected, self._first)
        rows, by_rank = self._comm.alltoallv(self._turned(send, last), np.roll(counts, self._first), told)
        return self._turned(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        """See `Comm.allreduce`."""
        return self._comm.allreduce(send, op, control)

    def _turned(self, rows: Array, at: int) -> Array:
        """``rows`` from row ``at`` on, and then those before it."""
        return rows if at in (0, len(rows)) else namespace(rows).concatenate([rows[at:], rows[:at]])
