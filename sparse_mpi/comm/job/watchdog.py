"""A watchdog over the ranks of a job: no rank waits in silence for an absent one.

A thread of each process polls its watchdogs four times a second. They know their rank's calls, at a microsecond a call
and no message.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sparse_mpi.comm.job.call_log import CallLog, CallSite

TIMEOUT = "SPARSE_MPI_TIMEOUT"  # seconds that a call may take; 0 or unset: no limit
WATCH = "SPARSE_MPI_WATCH"  # 1: a watchdog, also without a time limit
POLL = 0.25  # seconds between polls
QUIET = 0.5  # seconds that a rank which has ended waits for the others before it tells them


def time_limit(timeout: float | None) -> float:
    """Return the most seconds of a call: ``timeout``, else the variable `TIMEOUT`; 0 is no limit."""
    setting, seconds = os.environ.get(TIMEOUT, "0") if timeout is None else timeout, math.nan
    with suppress(ValueError):
        seconds = float(setting)
    if not 0 <= seconds < math.inf:
        name = TIMEOUT if timeout is None else "timeout"
        raise ValueError(f"{name} must be a number of seconds, got {setting!r}; 0 waits for any time")
    return seconds


def wants_watchdog(limit: float) -> bool:
    switch = os.environ.get(WATCH, "0")
    if switch not in ("0", "1"):
        raise ValueError(f"{WATCH} must be 0 or 1, got {switch!r}")
    return limit > 0 or switch == "1"


class Watchdog(ABC):
    closed = False  # True: it need not be polled any more

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank: int = rank
        self.size: int = size
        self.timeout: float = timeout
        self.log: CallLog = CallLog()

    @abstractmethod
    def poll(self) -> None:
        """Receive news of other ranks, and look for calls that wait in vain."""

    def announce_end(self) -> None:
        """Tell the others that this rank has ended its program, where the transport does not."""
        return

    def all_ended(self) -> Callable[[], bool]:
        """Return a function that tells if all ranks' programs have ended, or need not be waited for."""
        return lambda: True

    def others(self, site: CallSite) -> list[int]:
        return [rank for rank in self.log.ranks.get(site.family, range(self.size)) if rank != self.rank]

    def waiting(self, site: CallSite, sites: Mapping[int, CallSite], silent: str) -> str:
        limit = f"longer than {self.timeout:g} s, " if self.timeout else ""
        others = self.others(site)
        # Where none is late it may be any: all are in the call, or one has not received this rank's message yet
        late = [rank for rank in others if site.lacks(rank, sites.get(rank))] or others
        return f"{site}, {limit}and waits for others: {'; '.join(f'rank {r} {sites.get(r, silent)}' for r in late)}"

    def say(self, what: str, rank: int | None = None) -> None:
        """Print one line about a rank (None: this one), in one piece, as ranks print at once."""
        sys.stderr.write(f"sparse_mpi: rank {self.rank if rank is None else rank} of {self.size} {what}\n")
        sys.stderr.flush()


class WatchdogThread:
    def __init__(self) -> None:
        self._watchdogs: list[Watchdog] = []
        self._polling = threading.Lock()  # held while watchdogs are polled, or their list changes
        self._thread: threading.Thread | None = None

    def add(self, watchdog: Watchdog) -> None:
        with self._polling:
            self._watchdogs.append(watchdog)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="sparse_mpi watchdog", daemon=True)
            self._thread.start()
            atexit.register(self.end)

    def remove(self, watchdog: Watchdog) -> bool:
        with self._polling:
            before, self._watchdogs = self._watchdogs, [one for one in self._watchdogs if one is not watchdog]
            return watchdog in before

    def _watch(self) -> None:
        while True:
            time.sleep(POLL)
            self.poll()

    def poll(self) -> None:
        with self._polling:
            for watchdog in self._watchdogs:
                watchdog.poll()
            self._watchdogs = [watchdog for watchdog in self._watchdogs if not watchdog.closed]

    def wait(self, watchdogs: Sequence[Watchdog], stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until all ranks' programs have ended, or ``stop()``; after a while announce it to the others."""
        barriers, since, announced = [watchdog.all_ended() for watchdog in watchdogs], time.monotonic(), False
        while not all([passed() for passed in barriers]) and not stop():  # all begin, whatever their order elsewhere
            if not announced and time.monotonic() - since > QUIET:
                announced = True
                with self._polling:
                    for watchdog in watchdogs:
                        watchdog.announce_end()
            time.sleep(POLL / 250)  # 1 ms

    def end(self, kind: type = Watchdog) -> None:
        """Wait until all ranks' programs have ended, as MPI will, and stop polling watchdogs of ``kind``."""
        ending = [one for one in self._watchdogs if isinstance(one, kind)]
        self.wait(ending)
        for watchdog in ending:
            self.remove(watchdog)


WATCHDOG_THREAD = WatchdogThread()
os.register_at_fork(after_in_child=lambda: WatchdogThread.__init__(WATCHDOG_THREAD))  # the child is no rank
