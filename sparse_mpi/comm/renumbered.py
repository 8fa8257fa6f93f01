"""A view of a communicator in which ranks are numbered from another one on: ``Renumbered(comm, first)``.

Algorithms in which rank 0 has a part of its own deal that part out over the ranks, by another ``first`` in every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Comm, Counts, Job, Take
from sparse_mpi.comm.buffers import ascending
from sparse_mpi.comm.forwarding import ForwardingComm


class Renumbered(ForwardingComm):
    """A view of ``comm`` with rank ``first`` as number 0, ``first + 1`` as 1, and so on. ``comm`` counts its calls.

    All ranks must give the same ``first``, modulo the number of ranks.
    """

    def __init__(self, comm: Comm, first: int) -> None:
        super().__init__(comm)
        self._first = first % comm.size

    @property
    def rank(self) -> int:
        """Return the number of this rank here."""
        return (self._comm.rank - self._first) % self.size

    @property
    def job(self) -> Job:
        """Return the job of ``comm``, whose hosts are in the order of the ranks here."""
        job = self._comm.job
        hosts = job.hosts
        return job if hosts is None else job._replace(hosts=lambda: np.roll(hosts(), -self._first))

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self._comm.sendrecv(send, self._original(dest), self._original(source))

    def allgather(self, send: Array, control: bool = False) -> Array:
        gathered = self._comm.allgather(send, control)
        return namespace(gathered).roll(gathered, -self._first, axis=0)

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        rows, by_rank = self._comm.allgatherv(send, None if counts is None else np.roll(counts, self._first))
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        arriving = None if expected is None else np.roll(expected, self._first)
        rows, by_rank = self._comm.alltoallv(*self._leaving(send, counts), arriving)
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def streamed_alltoallv(self, send: Array, counts: Sequence[int] | Counts, take: Take) -> None:
        def hand_over(first: int, rows: Array, by_rank: Counts) -> None:
            for part in ascending((first - self._first) % self.size, rows, by_rank, self.size):
                take(*part)

        self._comm.streamed_alltoallv(*self._leaving(send, counts), hand_over)

    def _leaving(self, send: Array, counts: Sequence[int] | Counts) -> tuple[Array, Counts]:
        """Return rows for all ranks, and how many for each, in the order of ``comm``."""
        after = int(np.sum(counts[: self.size - self._first]))  # of ranks first, first + 1, ... P - 1
        return _rotated(send, after), np.roll(counts, self._first)

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        return self._comm.bcast(send, (root + self._first) % self.size, control)

    def duplicate(self, yield_cpu: bool = False) -> Renumbered:
        return Renumbered(self._comm.duplicate(yield_cpu), self._first)

    def split(self, color: int) -> Renumbered:
        part = self._comm.split(color)
        numbers = part.duplicate().allgather(np.array(self.rank))  # A duplicate's traffic is no step's
        return Renumbered(part, int(numbers.argmin()))

    def _original(self, number: int | None) -> int | None:
        """Return the rank in ``comm`` of the rank that has this ``number`` here."""
        return None if number is None else (number + self._first) % self.size


def _rotated(rows: Array, start: int) -> Array:
    """Return ``rows`` from row ``start`` on, followed by those before it."""
    return rows if start in (0, len(rows)) else namespace(rows).concatenate([rows[start:], rows[:start]])
