"""The thread that polls the watchdogs of this process, and the end of the program, for which they wait."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

POLL = 0.25  # seconds between polls
QUIET = 0.5  # seconds that a rank which has ended waits for the others before it tells them


class Monitor(Protocol):
    """A watchdog, as far as its thread knows it."""

    def poll(self) -> None:
        """Take in messages, and see whether a call waits in vain."""

    def announce_end(self) -> None:
        """Tell the others that this rank has ended its program."""

    def all_ended(self) -> Callable[[], bool]:
        """Return a function that says whether the programs of all ranks have ended."""


class WatchdogThread:
    """The watchdogs of this process, and the thread that polls them."""

    def __init__(self) -> None:
        self._monitors: list[Monitor] = []
        self._polling = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, monitor: Monitor) -> None:
        """Poll a watchdog from now on."""
        with self._polling:
            self._monitors.append(monitor)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="sparse_mpi watchdog", daemon=True)
            self._thread.start()
            atexit.register(self.rest)

    def remove(self, monitor: Monitor) -> bool:
        """Poll a watchdog no longer; return False if none is polled."""
        if self._stop.is_set():
            return False
        with self._polling:
            self._monitors = [other for other in self._monitors if other is not monitor]
        return True

    def _watch(self) -> None:
        while not self._stop.wait(POLL):
            with self._polling:
                for monitor in self._monitors:
                    monitor.poll()

    def wait(self, monitors: Sequence[Monitor], stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until the programs of all ranks have ended, or ``stop()``; tell those that have not ended theirs."""
        barriers, since, announced = [monitor.all_ended() for monitor in monitors], time.monotonic(), False
        while not all([passed() for passed in barriers]) and not stop():  # all begin, whatever their order elsewhere
            if not announced and time.monotonic() - since > QUIET:
                announced = True
                with self._polling:
                    for monitor in monitors:
                        monitor.announce_end()
            time.sleep(POLL / 250)

    def rest(self) -> None:
        """Wait until the programs of all ranks have ended, as MPI will, and poll no watchdog any more."""
        if self._stop.is_set():
            return
        self.wait(self._monitors)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


WATCHDOG_THREAD = WatchdogThread()
