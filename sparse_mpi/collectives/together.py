"""Collective work that no rank leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparse_mpi.comm import Comm
from sparse_mpi.comm.failure import RankFailure


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
