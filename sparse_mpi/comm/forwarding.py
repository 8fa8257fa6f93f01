"""`ForwardingComm`: a view of another communicator, for those who change some of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm.base import Comm, Counts, Job, Traffic

T = TypeVar("T")


class ForwardingComm:
    """A view of ``comm`` with attributes of its own. Subclasses override calls, or `_around`, which is around all."""

    def __init__(self, comm: Comm) -> None:
        self._inner = comm
        self._attributes: dict[object, Any] = {}

    @property
    def _comm(self) -> Comm:
        return self._inner

    def _around(self, call: Callable[[], T]) -> T:
        return call()

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    @property
    def attributes(self) -> dict[object, Any]:
        return self._attributes

    @property
    def traffic(self) -> Traffic:
        return self._comm.traffic

    @property
    def job(self) -> Job:
        return self._comm.job

    def sendrecv(self, send: Array, dest: int | None, source: int | None) -> Array | None:
        return self._around(lambda: self._comm.sendrecv(send, dest, source))

    def allgather(self, send: Array, control: bool = False) -> Array:
        return self._around(lambda: self._comm.allgather(send, control))

    def allgatherv(self, send: Array, counts: Sequence[int] | Counts | None = None) -> tuple[Array, Counts]:
        return self._around(lambda: self._comm.allgatherv(send, counts))

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        return self._around(lambda: self._comm.alltoallv(send, counts, expected))

    def allreduce(self, send: Array, op: str = "sum", control: bool = False) -> Array:
        return self._around(lambda: self._comm.allreduce(send, op, control))

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        return self._around(lambda: self._comm.bcast(send, root, control))

    def barrier(self) -> None:
        self._around(lambda: self._comm.barrier())

    def duplicate(self, yield_cpu: bool = False) -> Comm:
        return self._around(lambda: self._comm.duplicate(yield_cpu))

    def split(self, color: int) -> Comm:
        return self._around(lambda: self._comm.split(color))


class Renumbered(ForwardingComm):
    """A view of ``comm`` with rank ``first``, the same on all ranks, as number 0, ``first + 1`` as 1, and so on."""

    # Number i here is rank (i + first) % P of ``comm``: `np.roll` by -first takes an array from the order of its ranks
    # to that of the numbers here, and by first back. An allreduce and a barrier have no such order.
    def __init__(self, comm: Comm, first: int) -> None:
        super().__init__(comm)
        self._first = first % comm.size

    @property
    def rank(self) -> int:
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
        # The rows of ranks 0, ..., first - 1 of ``comm`` come last here.
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def alltoallv(
        self, send: Array, counts: Sequence[int] | Counts, expected: Sequence[int] | Counts | None = None
    ) -> tuple[Array, Counts]:
        arriving = None if expected is None else np.roll(expected, self._first)
        after = int(np.sum(counts[: self.size - self._first]))  # rows for ranks first, first + 1, ... P - 1
        rows, by_rank = self._comm.alltoallv(_rotated(send, after), np.roll(counts, self._first), arriving)
        return _rotated(rows, int(by_rank[: self._first].sum())), np.roll(by_rank, -self._first)

    def bcast(self, send: Array, root: int = 0, control: bool = False) -> Array:
        return self._comm.bcast(send, (root + self._first) % self.size, control)

    def duplicate(self, yield_cpu: bool = False) -> Renumbered:
        return Renumbered(self._comm.duplicate(yield_cpu), self._first)

    def split(self, color: int) -> Renumbered:
        part = self._comm.split(color)
        # The part has its ranks in the order of ``comm``. The one with the lowest number here is to be first.
        numbers = part.duplicate().allgather(np.array(self.rank))  # A duplicate's traffic is no step's
        return Renumbered(part, int(numbers.argmin()))

    def _original(self, number: int | None) -> int | None:
        return None if number is None else (number + self._first) % self.size


def _rotated(rows: Array, start: int) -> Array:
    return rows if start in (0, len(rows)) else namespace(rows).concatenate([rows[start:], rows[:start]])
