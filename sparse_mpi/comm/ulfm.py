"""User-level failure mitigation (ULFM): what MPI offers to the ranks that are left when one has failed.

Open MPI 5 has it where it was started with ``mpirun --with-ft ulfm``; MPICH has not.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from sparse_mpi.comm.kennel import KENNEL
from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.comm.runtime import on_uncaught

SWITCH = "OMPI_MCA_mpi_ft_enable"  # which mpirun sets


def available(MPI: Any) -> bool:
    """Tell if the ranks of this job survive the failure of others."""
    return os.environ.get(SWITCH) == "1" and hasattr(MPI, "ERR_PROC_FAILED") and hasattr(MPI.Comm, "Shrink")


class _End:
    """The end of a process whose job survives: alone, and without MPI_Finalize, which may wait for the dead for ever.

    Open MPI hears of a process that is killed at once, but never of one that exits: so this one is killed.
    """

    def __init__(self) -> None:
        self._exit, self._leave = os._exit, sys.exit
        self._status: Any = None
        self._alone = self._survived = False

    def alone(self) -> None:
        """Have an exception that nothing catches, and `os._exit`, end this process only."""
        if not self._alone:
            self._alone = True
            on_uncaught(self._die)
            os._exit = lambda status: self._kill()

    def survived(self) -> None:
        """Have the program end without MPI_Finalize, with the status that `sys.exit` is given."""
        if not self._survived:
            self._survived = True
            sys.exit = self._note
            # What was registered before would run after this: mpi4py's end, but also that of other modules
            atexit.register(self._end)

    def _die(self, error: BaseException) -> None:
        traceback.print_exception(type(error), error, error.__traceback__)
        self._kill()

    def _kill(self) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit  # never reached

    def _note(self, status: Any = None) -> NoReturn:
        self._status = status
        self._leave(status)

    def _end(self) -> None:
        KENNEL.rest()
        status = self._status
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(status if isinstance(status, int) else status is not None)


_END = _End()
_KEPT: list[Exception] = []  # failures: in their frames are messages on their way, whose memory must stay


class UlfmComm(MPIComm):
    """An `MPIComm` whose ranks can go on after one of them has failed."""

    elastic = True

    def _set_up(self, MPI: Any, comm: Any, staged: bool, bucket: int, patient: bool) -> None:
        super()._set_up(MPI, comm, staged, bucket, patient)
        self._made: list[UlfmComm] = []  # of this one, to be revoked with it

    def duplicate(self, patient: bool = False) -> MPIComm:
        return self._noted(super().duplicate(patient))

    def _split(self, color: int) -> MPIComm:
        return self._noted(super()._split(color))

    def _noted(self, made: MPIComm) -> MPIComm:
        assert isinstance(made, UlfmComm), "what is made of a communicator is of its class"
        self._made.append(made)
        return made

    def _tells_of_failure(self, error: Exception) -> bool:
        if isinstance(error, self._mpi.Exception) and self.broken():
            _KEPT.append(error)
            return True
        return False

    def broken(self) -> bool:
        return bool(self._comm.Is_revoked() or self._comm.Get_failed().size)

    def fail_alone(self) -> None:
        _END.alone()

    def revoke(self) -> None:
        for made in self._made:
            made.revoke()
        if self._comm != self._mpi.COMM_NULL and not self._comm.Is_revoked():
            self._comm.Revoke()

    def shrink(self) -> UlfmComm:
        _END.survived()
        timeout, made = 0.0 if self._dog is None else self._dog.timeout, self
        while True:
            if made._dog is not None:
                made._dog.retire()
            raw, made = made._comm.Shrink(), object.__new__(UlfmComm)
            made._set_up(self._mpi, raw, self.staged, self._bucket, self._patient)
            made._ledger = self._ledger
            try:
                made._watch(timeout)
                return made
            except self._mpi.Exception as error:
                if not made._tells_of_failure(error):
                    raise
                made.revoke()  # another rank has failed here
