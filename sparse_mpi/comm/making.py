"""Derived MPI communicators: made one at a time, and freed once no rank uses them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm.buffers import row_bytes
from sparse_mpi.comm.job.call_log import Watched

CHUNK = 2**30  # rows or elements of one MPI message
PAUSE = 1e-3  # seconds, at most, before ranks ask again
_LOCK = threading.Lock()  # held while this process makes communicators
_DRAWN = random.Random()  # not the random numbers of the program


@cache
def rowtype(MPI: Any, size: int) -> Any:
    return MPI.BYTE.Create_contiguous(size).Commit()


def pieces(MPI: Any, rows: Array) -> list[list[Any]]:
    """Cut ``rows`` into MPI messages; the last one is shorter than ``CHUNK`` and may be empty."""
    if len(rows) < CHUNK:  # nearly all are shorter
        return [[rows, len(rows), rowtype(MPI, row_bytes(rows))]]
    # A piece of CHUNK rows announces another one. So where CHUNK divides the rows an empty piece follows.
    parts = [rows[at : at + CHUNK] for at in range(0, len(rows) + 1, CHUNK)]
    return [[part, len(part), rowtype(MPI, row_bytes(rows))] for part in parts]


@contextmanager
def alone(MPI: Any, comm: Any, flags: Sequence[bool] = ()) -> Iterator[list[bool]]:
    """Return a context in which no rank of ``comm`` makes communicators in another thread. Collective.

    Open MPI may wait for ever if two threads do so at once, also of different communicators. The context's value tells
    which ``flags`` are set on all ranks.
    """
    words = np.array([0, *flags], np.uint8)  # 1 if this rank holds its lock, then its flags
    everywhere = words.copy()
    while True:
        # Rank 0 waits for its lock; the others wait for rank 0 in the Bcast, and hold no lock of this call.
        held = comm.rank == 0 and _LOCK.acquire()
        try:
            comm.Bcast(everywhere[:1], 0)
            # The others only try: two communicators with other first ranks could else wait for each other's locks.
            held = held or _LOCK.acquire(blocking=False)
            words[0] = held
            comm.Allreduce(words, everywhere, MPI.MIN)  # 1 where all ranks have 1: all hold their locks, all set a flag
            if everywhere[0]:
                yield everywhere[1:].astype(bool).tolist()
                return
        finally:
            if held:
                _LOCK.release()
        time.sleep(PAUSE * _DRAWN.random())  # random, so that two threads do not get in each other's way again


class Raw:
    """A communicator of mpi4py, and its derived ones.

    Freeing is collective: when ranks derive another one, they free those without users on any rank.
    """

    def __init__(self, MPI: Any, comm: Any) -> None:
        self.mpi: Any = MPI
        self.comm: Any = comm
        self.watched: Watched | None = None  # the log of its calls, for a watchdog
        self._parts: list[tuple[ReferenceType[Any], Raw]] = []  # derived communicators, each with its user

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Return a context in which to derive one more; unused ones are freed first. Collective."""
        # All ranks have the same list in the same order, and a flag is of the same part on all of them.
        parts = self._parts = [part for part in self._parts if part[1].comm != self.mpi.COMM_NULL]
        with alone(self.mpi, self.comm, [user() is None for user, _ in parts]) as unused:
            for (_, part), free in zip(parts, unused, strict=True):
                # Communicators derived from the part are unused too: they would keep its user alive.
                for raw in part.tree() if free else ():
                    raw.free()
            yield

    def add(self, comm: Any, user: Any) -> Raw:
        """Return ``comm`` as derived from this for ``user``, which keeps this one's user alive."""
        made = Raw(self.mpi, comm)
        self._parts.append((ref(user), made))
        return made

    def tree(self) -> Iterator[Raw]:
        for _, part in self._parts:
            yield from part.tree()
        if self.comm != self.mpi.COMM_NULL:
            yield self

    def free(self) -> None:
        if self.watched is not None:
            self.watched.forget()
        self.comm.Free()
