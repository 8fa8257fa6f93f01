"""`ForwardingComm`: a view of another communicator, for those who change some of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparse_mpi.arrays import Array
from sparse_mpi.comm.base import Comm, Counts, Job, Take
from sparse_mpi.comm.traffic import Traffic

T = TypeVar("T")


class ForwardingComm:
    """A `Comm` that has ``comm`` do what it is asked to. It has attributes of its own.

    Subclasses override calls, or `_around`, through which all messages go.
    """

    def __init__(self, comm: Comm) -> None:
        self._inner = comm
        self._attributes: dict[object, Any] = {}

    @property
    def _comm(self) -> Comm:
        """Return the communicator that does the work."""
        return self._inner

    def _around(self, call: Callable[[], T]) -> T:
        """Return ``call()``, which makes one call of the other communicator."""
        return call()

    @property
    def rank(self) -> int:
        """Return the number of this rank."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return self._comm.size

    @property
    def attributes(self) -> dict[object, Any]:
        """Return what users keep with this view."""
        return self._attributes

    @property
    def traffic(self) -> Traffic:
        """Return what the other communicator has counted."""
        return self._comm.traffic

    @property
    def job(self) -> Job:
        """Return the job of the other communicator."""
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

    def streamed_alltoallv(self, send: Array, counts: Sequence[int] | Counts, take: Take) -> None:
        """Hand over all there is at once: what ``take`` computes is no part of the call."""
        take(0, *self.alltoallv(send, counts))

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
