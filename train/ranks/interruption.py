"""Notice that a job is to end: SIGTERM, and SIGUSR1, which batch systems send ahead of their time limit if asked to."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import numpy as np

from sparse_mpi.comm import Comm

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EVERY = 5  # steps between the questions whether any rank was told to end


class Interruption:
    """From here on these signals do not end the process but are remembered; in its main thread, the only one that may
    ask for that."""

    def __init__(self) -> None:
        self.noticed = False
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._notice)

    def anywhere(self, step: int, comm: Comm) -> bool:
        """Whether any rank was told to end; the ranks ask each other after every fifth step alone, with 4 bytes."""
        if step % EVERY:
            return False
        return bool(comm.allreduce(np.array([self.noticed], np.int32), "max", control=True)[0])

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.noticed = True
