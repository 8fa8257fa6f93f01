"""What a view of a communicator passes on to it: the calls that concern the job, not its messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from sparse_mpi.arrays import Array
from sparse_mpi.comm.base import Comm


class Passing:
    """The members of `Comm` about the job and its failures, of a view of ``_comm``."""

    _comm: Comm
    sendrecv: Callable[[Array, int | None, int | None], Array | None]

    def start_sendrecv(self, send: Array, dest: int, source: int) -> Callable[[], Array]:
        """Carry out the `sendrecv` at once."""
        came = self.sendrecv(send, dest, source)
        assert came is not None, "there is a source"
        return lambda: came

    @property
    def staged(self) -> bool:
        """Say whether arrays on a device pass through host memory on their way."""
        return self._comm.staged

    @property
    def elastic(self) -> bool:
        """Say whether the communicator survives the loss of a rank."""
        return self._comm.elastic

    def abort(self, error: BaseException) -> NoReturn:
        self._comm.abort(error)

    def begin_reduction(self) -> None:
        self._comm.begin_reduction()

    def guard(self) -> None:
        self._comm.guard()

    def broken(self) -> bool:
        return self._comm.broken()

    def fail_alone(self, close: Callable[[], None]) -> None:
        self._comm.fail_alone(close)

    def patient(self) -> Comm:
        return self._comm.patient()

    def wait_for_end(self) -> None:
        self._comm.wait_for_end()

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return self._comm.within(seconds)

    def revoke(self) -> None:
        self._comm.revoke()

    def shrink(self) -> Comm:
        return self._comm.shrink()
