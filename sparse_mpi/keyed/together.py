"""Collective work in its turn, that no rank leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import busy, progress_thread_of
from sparse_mpi.comm.failure import RankFailure

T = TypeVar("T")


def in_turn(comm: Comm, work: Callable[[], T]) -> T:
    """Return what ``work`` returns, after all that is under way on the communicator."""
    return progress_thread_of(comm).start(work).wait() if busy(comm) else work()


@contextmanager
def together(comm: Comm) -> Iterator[None]:
    """End the job on an exception: the other ranks would wait for this one for ever.

    Where ranks are lost and the others go on, exceptions are left to those who lead them.
    """
    try:
        yield
    except Exception as error:
        if comm.elastic and (isinstance(error, RankFailure) or comm.broken()):
            raise
        comm.abort(error)
