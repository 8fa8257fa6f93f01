"""The thread that lets the watchdogs of this process look, and the end of the program, for which they wait."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

LOOK = 0.25  # seconds between looks
QUIET = 0.5  # seconds that a rank which has ended waits for the others before it tells them


class Dog(Protocol):
    """What is needed of a `Watchdog`, whose members these are."""

    def look(self) -> None:
        """Look around."""

    def tell(self) -> None:
        """Tell the others that this rank has ended its program."""

    def ended(self) -> Callable[[], bool]:
        """Return a function that tells if the programs of all ranks have ended."""


class Kennel:
    """The watchdogs of this process, and the thread that lets them look."""

    def __init__(self) -> None:
        self._dogs: list[Dog] = []
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, dog: Dog) -> None:
        """Let a watchdog look from now on."""
        with self._looking:
            self._dogs.append(dog)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="sparse_mpi watchdog", daemon=True)
            self._thread.start()
            atexit.register(self.rest)

    def remove(self, dog: Dog) -> bool:
        """Let a watchdog look no longer; return False if none do."""
        if self._stop.is_set():
            return False
        with self._looking:
            self._dogs = [other for other in self._dogs if other is not dog]
        return True

    def _watch(self) -> None:
        while not self._stop.wait(LOOK):
            with self._looking:
                for dog in self._dogs:
                    dog.look()

    def wait(self, dogs: Sequence[Dog], stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until the programs of all ranks have ended, or ``stop()``; tell those that have not ended theirs."""
        barriers, since, told = [dog.ended() for dog in dogs], time.monotonic(), False
        while not all([passed() for passed in barriers]) and not stop():  # all begin, whatever their order elsewhere
            if not told and time.monotonic() - since > QUIET:
                told = True
                with self._looking:
                    for dog in dogs:
                        dog.tell()
            time.sleep(LOOK / 250)

    def rest(self) -> None:
        """Wait until the programs of all ranks have ended, as MPI will, and let no watchdog look any more."""
        if self._stop.is_set():
            return
        self.wait(self._dogs)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


KENNEL = Kennel()
