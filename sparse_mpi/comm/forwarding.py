"""`ForwardingComm`: a view of another communicator, to change some of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparse_mpi.arrays import Array
from sparse_mpi.comm.base import Comm, Counts, Job, Traffic

T = TypeVar("T")


class ForwardingComm:
    """A view of ``comm`` with its own attributes. Subclasses override calls, or `_around`, which wraps all."""

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
        self, send: Array, counts: Sequence[int] | Counts | None = None, expected: Sequence[int] | Counts | None = None
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
