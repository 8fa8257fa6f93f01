"""The watchdog over the ranks of an mpi4py communicator: `MPIWatchdog`.

Messages are sent in two cases only:

- A rank that ends its program waits for all others, as MPI does, but after half a second sends them its number of
  calls. A rank in a later call would wait for ever: it says so, and ends the job.
- With a time limit, a rank that has waited longer asks the others for their calls, says for whom it waits and where
  that rank was last seen, and ends the job. If ranks survive failures, a stopped process of this machine is killed
  instead.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from sparse_mpi.comm.job.call_log import CLOSE, SHRINK, CallSite, Watched, now
from sparse_mpi.comm.job.process_liveness import Neighbours
from sparse_mpi.comm.job.watchdog import POLL, WATCHDOG_THREAD, Watchdog

STUCK = 1.0  # seconds in a call after which a rank counts as waiting for one that has ended
ANSWER = 1.0  # seconds in which a watchdog must answer
SETTLED = 3.0  # seconds in or after a call from which on a watchdog whose ranks survive failures asks MPI
RECOVERY = 30.0  # seconds that ranks may take to go on without one that has failed
SPEAKING, LATE = 1.0, 2.5  # seconds between a report and the end of the job, for others to report too; of a time limit
VANISHED = "the process of rank {} has ended by itself, which mpirun tells nobody: end it by an exception, or sys.exit"
# Tags, none of which is one of `MPIComm`: calls of a rank that has ended, a question, its answer, an exception
ENDED, WHERE, HERE, DYING = TAGS = range(11, 15)


class MPIWatchdog(Watchdog):
    """One rank's watchdog over a communicator. Making one is collective."""

    def __init__(self, MPI: Any, comm: Any, timeout: float = 0.0, survives: bool = False) -> None:
        # Where ranks may fail, share their communicator: it is revoked then, and MPI may crash if one fails in a Dup.
        self._neighbours = Neighbours.of(comm) if survives else None
        self._mpi, self._comm = MPI, comm if survives else comm.Dup()
        super().__init__(self._comm.rank, self._comm.size, timeout)
        self._group, self._families = self._comm.Get_group(), itertools.count()
        self._ended: dict[int, dict[int, int]] = {}  # rank that has ended its program -> its numbers
        self._answers: dict[int, CallSite] = {}
        self.dying: set[int] = set()  # other ranks with an uncaught exception
        self._sending: list[Any] = []  # messages of a few numbers, kept to the end; one or two in a job
        WATCHDOG_THREAD.add(self)

    def over(self, comm: Any) -> Watched:
        """Return the log of a communicator of some of this watchdog's ranks. Collective there."""
        # The number of the first rank counts: no other rank, and no other call on this one, draws the same.
        family = int(comm.bcast(next(self._families) * self.size + self.rank, 0))
        return self.log.over(family, self._mpi.Group.Translate_ranks(comm.Get_group(), None, self._group))

    def free(self) -> None:
        """Stop watching. Collective, unless the program has ended or the ranks survive failures."""
        if WATCHDOG_THREAD.remove(self) and self._neighbours is None:
            self._comm.Free()

    def during(self, call: int) -> AbstractContextManager[None]:
        return self.log.during(call, next(iter(self.log.numbers)))

    def poll(self) -> None:
        if self._mpi.Is_finalized():
            return
        sites = self.log.sites()
        if self._neighbours is not None:
            self._inspect(self._neighbours, sites)
            # A failure of which MPI hears in two threads at once may crash it, or have it wait for ever. So leave MPI
            # alone where a call may hear of one soon, be it of a rank that has just been killed for being stopped.
            settled = max(SETTLED, self.timeout + ANSWER if self.timeout else 0.0)
            if any(site.seconds < settled or site.call in (CLOSE, SHRINK) and site.inside for site in sites):
                return
        self.read()
        for site in sites:
            for rank, numbers in self._ended.items():
                if site.waits_for(rank, numbers) and site.seconds > STUCK:
                    self._give_up(f"waits for rank {rank}, which has ended its program: it {site}")
            if self.timeout and site.inside and site.seconds > self.timeout:
                self._report(site)

    def _inspect(self, neighbours: Neighbours, sites: list[CallSite]) -> None:
        """Inspect this machine's processes, without messages, if this rank waits for long.

        A process that has ended unnoticed by calls ends the job.
        """
        inside = [site for site in sites if site.inside]
        waited = [site for site in inside if self.timeout and site.seconds > self.timeout]
        for rank in neighbours.stopped() if waited else ():
            self.say("does not come to a call, for it is stopped: it is killed", rank)
            neighbours.kill(rank)
        recovery = max(RECOVERY, 2 * self.timeout)
        for site in inside:
            if site.call == SHRINK and site.seconds > recovery and self.timeout:
                self._give_up(f"cannot go on without the ranks that have failed: it {site}")
            if site.seconds > (recovery if site.call == SHRINK else SETTLED):
                for rank in neighbours.ended(SETTLED):
                    self._give_up(f"{site}; {VANISHED.format(rank)}")

    def read(self) -> None:
        with suppress(self._mpi.Exception):  # a rank has failed: the calls of this one will tell
            for tag in TAGS:
                self._read(tag)

    def _read(self, tag: int) -> None:
        status = self._mpi.Status()
        while (message := self._comm.Improbe(self._mpi.ANY_SOURCE, tag, status)) is not None:
            words, source = np.empty(status.Get_count(self._mpi.INT64_T), np.int64), status.Get_source()
            message.Recv([words, self._mpi.INT64_T])
            if tag == ENDED:
                self._ended[source] = {int(family): int(number) for family, number in words.reshape(-1, 2)}
            elif tag == DYING:
                self.dying.add(source)
            elif tag == WHERE:
                site = self.log.current_call()
                self._send(site._replace(since=now() - site.since), source, HERE)  # clocks of hosts differ
            else:
                site = CallSite(*words.tolist())
                self._answers[source] = site._replace(since=now() - site.since)

    def _send(self, words: Iterable[int], rank: int, tag: int) -> None:
        with suppress(self._mpi.Exception):  # its receiver has failed
            self._sending.append(self._comm.Isend([np.array(list(words), np.int64), self._mpi.INT64_T], rank, tag))

    def _report(self, site: CallSite) -> None:
        others = self.others(site)
        self._answers.clear()
        for rank in others:
            self._send((), rank, WHERE)
        until = time.monotonic() + ANSWER
        while len(self._answers) < len(others) and time.monotonic() < until:
            self.read()
            time.sleep(POLL / 25)
        self._give_up(self.waiting(site, self._answers, "does not answer"), LATE)

    def _give_up(self, why: str, speaking: float = SPEAKING) -> None:
        self.say(f"{why}; the job ends")
        until = time.monotonic() + speaking
        while time.monotonic() < until:
            self.read()  # others may ask where this rank is
            time.sleep(POLL / 25)
        with suppress(self._mpi.Exception):
            self._comm.Abort(1)
        os._exit(1)  # MPI may leave this rank alive where ranks survive the loss of others

    def announce_end(self, dying: bool = False) -> None:
        """Send all other ranks this rank's number of calls, as it has ended; or that it is ``dying``."""
        words = [word for pair in list(self.log.numbers.items()) for word in pair]
        for rank in range(self.size):
            if rank != self.rank:
                self._send(words, rank, DYING if dying else ENDED)

    def all_ended(self) -> Callable[[], bool]:
        barrier: list[Any] = []

        def passed() -> bool:
            if self._mpi.Is_finalized():
                return True
            try:
                if not barrier:
                    barrier.append(self._comm.Ibarrier())  # polled, not waited for: polls of messages go on
                return bool(barrier[0].Test())
            except self._mpi.Exception:  # a rank has failed, and is not waited for
                return True

        return passed
