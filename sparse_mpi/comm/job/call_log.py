"""What the threads of a rank note of its calls, for a watchdog to read: `CallLog`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple

from sparse_mpi.comm.job.call_site import NOBODY, SENDRECV, UNCOUNTED, CallSite


class CallLog:
    """The calls of a rank, each noted by its thread as it is entered and left, in one assignment each.

    Attributes:
        numbers: how many collective calls this rank has entered on each communicator, by the number of its family.
    """

    def __init__(self) -> None:
        # By thread: all of `CallSite` but `inside`, and a number for `leave`
        self._entered: dict[int, tuple[int, int, int, int, float, int, int]] = {}
        self._left: dict[int, tuple[int, float]] = {}  # the number of the call that was left, and when
        self._calls = itertools.count()
        self.numbers: dict[int, int] = {}
        self._reductions = 0

    def over(self, family: int, ranks: Sequence[int]) -> Watched:
        """Return what notes the calls on a communicator of that number, of these ranks of the watchdog."""
        self.numbers.setdefault(family, 0)
        return Watched(self, family, ranks)

    def enter(self, call: int, family: int, awaited: int) -> None:
        """Note that this thread enters a call on the communicator ``family``; see `CallSite`."""
        if call not in UNCOUNTED:
            self.numbers[family] += 1
        noted = (call, family, self.numbers[family], awaited, time.time(), self._reductions, next(self._calls))
        self._entered[get_ident()] = noted

    def received(self) -> None:
        """Note that this thread has its message, and waits for nobody but those who take its own."""
        thread = get_ident()
        call, family, number, _, entered, reduction, noted = self._entered[thread]
        self._entered[thread] = call, family, number, NOBODY, entered, reduction, noted

    def leave(self) -> None:
        """Note that this thread has left its call."""
        thread = get_ident()
        self._left[thread] = self._entered[thread][-1], time.time()

    def begin_reduction(self) -> None:
        """Note that a reduction begins."""
        self._reductions += 1

    def sites(self) -> list[CallSite]:
        """Return where each thread is."""
        sites = []
        # Read what was left first: a call that was entered since then is a new one
        for thread, (last, left) in [(thread, self._left.get(thread, (-1, 0.0))) for thread in list(self._entered)]:
            call, family, number, awaited, entered, reduction, noted = self._entered[thread]
            inside = last != noted
            since = int(1e3 * (entered if inside else left))
            sites.append(CallSite(call, int(inside), family, number, awaited, since, reduction))
        return sites

    def current_call(self) -> CallSite:
        """Return the call in which this rank has been for longest, or else the one that it left last."""
        sites = self.sites() or [CallSite()]
        return min(sites, key=lambda site: (not site.inside, site.since if site.inside else -site.since))


class Watched(NamedTuple):
    """A communicator whose calls are noted for a watchdog."""

    log: CallLog
    family: int  # its number
    ranks: Sequence[int]  # of its ranks, among those of the watchdog

    def enter(self, call: int, source: Any = None) -> None:
        """Note that a call is entered; a sendrecv expects a message from ``source``, if from anybody."""
        awaited = self.ranks[source] if call == SENDRECV and source is not None else NOBODY
        self.log.enter(call, self.family, awaited)

    def received(self) -> None:
        """Note that the message of a sendrecv is there."""
        self.log.received()

    def leave(self) -> None:
        """Note that the call was left."""
        self.log.leave()

    def forget(self) -> None:
        """Forget the communicator, which is to be freed. Collective there."""
        del self.log.numbers[self.family]
