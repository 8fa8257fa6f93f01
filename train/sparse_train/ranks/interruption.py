"""Notice that a job is to end: SIGTERM, and SIGUSR1, which batch systems send ahead of their time limit if asked to."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import numpy as np

from sparse_mpi.comm import Comm

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EVERY = 5  # steps from one exchange of what ranks have noticed to the next


class Interruption:
    """A handler of `SIGNALS` that remembers them instead of ending the process.

    Python lets only the main thread set a handler: made in another thread, nothing is noticed.
    """

    def __init__(self) -> None:
        self.noticed = False
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._notice)

    def anywhere(self, step: int, comm: Comm) -> bool:
        """Return whether any rank got a signal: after every `EVERY`-th step, collectively, else always False."""
        if step % EVERY:
            return False
        return bool(comm.allreduce(np.array([self.noticed], np.int32), "max", control=True)[0])

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.noticed = True
