"""A watchdog for jobs over torch.distributed: `StoreWatchdog`, by way of the processes' store.

A rank whose call, or whose pause between two calls, lasts longer than a second writes that to the store. One that has
waited for too long in a call reads there where the others are, and says for whom it waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from sparse_mpi.comm.job.call_log import DUPLICATE, SENDRECV, CallSite
from sparse_mpi.comm.job.watchdog import TIMEOUT, WATCHDOG_THREAD, Watchdog

T = TypeVar("T")

ANSWER = 2.0  # seconds in which the store must answer: the process that has it may be frozen
LASTING = 1.0  # seconds after which a rank writes where it is
WORD = 60.0  # seconds in a call after which a rank says so, where there is no time limit
SPEAKING = 2.5  # seconds between a report and the end of the process, for others to report too
SITES, SAID = "sparse_mpi/site", "sparse_mpi/said"  # keys


class StoreWatchdog(Watchdog):
    def __init__(
        self, rank: int, size: int, store: Callable[[], Any], timeout: float, end: Callable[[], object]
    ) -> None:
        super().__init__(rank, size, timeout)
        self._store, self._end = store, end
        self._written: CallSite | None = None  # last entry in the store
        self._reported: CallSite | None = None
        WATCHDOG_THREAD.add(self)

    def poll(self) -> None:
        """Write this rank's place after a while there, and report a call that takes too long."""
        site = self.log.current_call()
        if site.seconds < LASTING:
            return
        # Who makes a group waits for the store itself, which serves one call at a time.
        store = None if site.call == DUPLICATE and site.inside else self._store()
        if store is not None and site != self._written:
            self._written = site
            _answer(partial(store.set, f"{SITES}/{self.rank}", ",".join(map(str, site))), None)
        # Others that entered the call just before the limit have written so by then.
        if site.inside and site.seconds > (self.timeout or WORD) + 2 * LASTING and site != self._reported:
            self._reported = site
            self._report(site, store)

    def _report(self, site: CallSite, store: object) -> None:
        """Say for whom this rank waits, unless another one has reported this call; with a time limit end the job."""
        silent: tuple[bool, dict[int, CallSite]] = True, {}
        speaks, sites = _answer(lambda: (self._speaks(site, store), _sites(self.others(site), store)), silent)
        if speaks:
            left = "the job ends" if self.timeout else f"{TIMEOUT} would end the job"
            self.say(f"{self.waiting(site, sites, 'is not known to wait')}; {left}")
        if self.timeout:
            time.sleep(SPEAKING)
            self._end()

    def _speaks(self, site: CallSite, store: Any) -> bool:
        if store is None or site.call == SENDRECV:  # each rank waits for another one in a sendrecv
            return True
        return bool(store.add(f"{SAID}/{site.family}/{site.number}", 1) == 1)


def _answer(ask: Callable[[], T], otherwise: T) -> T:
    """Return what the store says, or ``otherwise`` where it is gone, or does not answer in time."""
    answers: list[T] = []

    def work() -> None:
        with suppress(RuntimeError):  # the store is gone with the process that had it
            answers.append(ask())

    thread = threading.Thread(target=work, name="sparse_mpi asks the store", daemon=True)
    thread.start()
    thread.join(ANSWER)
    return answers[0] if answers else otherwise


def _sites(ranks: list[int], store: Any) -> dict[int, CallSite]:
    keys = {rank: f"{SITES}/{rank}" for rank in ranks} if store is not None else {}
    return {rank: CallSite(*map(int, store.get(key).split(b","))) for rank, key in keys.items() if store.check([key])}
