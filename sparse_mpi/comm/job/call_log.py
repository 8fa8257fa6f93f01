"""The log of a rank's calls, for a watchdog to read: `CallLog`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

CALLS = ("", *"sendrecv allgather allgatherv alltoallv allreduce bcast barrier shrink close duplicate".split())
SENDRECV, SHRINK, CLOSE = CALLS.index("sendrecv"), CALLS.index("shrink"), CALLS.index("close")
DUPLICATE = CALLS.index("duplicate")  # any call that makes a communicator
UNCOUNTED = (SENDRECV, SHRINK, CLOSE)  # calls that are not counted: the last two are of all ranks that are left
NOBODY = -1


def now() -> int:
    return int(1e3 * time.time())


class CallSite(NamedTuple):
    """Where a thread of a rank is: in a call, or after it."""

    call: int = 0  # index into `CALLS`; 0 before the first
    inside: int = 0  # 1 within the call, 0 after it
    family: int = 0  # number of the communicator, the same on all of its ranks
    number: int = 0  # collective calls there so far, this one included; see `UNCOUNTED`
    awaited: int = NOBODY  # the rank from which a sendrecv expects a message
    since: int = 0  # time at which the call was entered or left, see `now`
    reduction: int = 0  # reductions that the rank had begun, this one included

    @property
    def seconds(self) -> float:
        return max(now() - self.since, 0) / 1e3

    def __str__(self) -> str:
        if not self.call:
            return "has made no call yet"
        of = f" of reduction {self.reduction}" if self.reduction else ""
        if self.inside:
            return f"has been in {CALLS[self.call]}{of} for {self.seconds:.0f} s"
        return f"left {CALLS[self.call]}{of} {self.seconds:.0f} s ago, and has made no call since"

    def lacks(self, rank: int, other: CallSite | None) -> bool:
        """Tell if a rank, at ``other`` if known, is not yet in the call where this one waits."""
        if other is None:
            return True
        if self.call == SENDRECV:
            return rank == self.awaited
        if not (other.inside and other.family == self.family):
            return True
        return (other.number, other.call) != (self.number, self.call) and other.number <= self.number

    def waits_for(self, rank: int, numbers: dict[int, int]) -> bool:
        """Tell if this call needs one of ``rank``, which has entered ``numbers``, family -> collective calls."""
        if not self.inside:
            return False
        if self.call in UNCOUNTED:
            return self.call == SENDRECV and self.awaited == rank
        return self.family in numbers and self.number > numbers[self.family]


class CallLog:
    """A rank's calls, which threads note on entry and exit, in one assignment each."""

    def __init__(self) -> None:
        # By thread: all of `CallSite` but `inside`, and a number for `leave`
        self._entered: dict[int, tuple[int, int, int, int, float, int, int]] = {}
        self._left: dict[int, tuple[int, float]] = {}  # the number of the call that was left, and when
        self._calls = itertools.count()
        # By the number of the family: collective calls entered, and ranks by their numbers in the watchdog
        self.numbers: dict[int, int] = {}
        self.ranks: dict[int, Sequence[int]] = {}
        self._reductions = 0

    def over(self, family: int, ranks: Sequence[int]) -> Watched:
        """Return the log of communicator ``family``; ``ranks`` are its ranks' numbers in the watchdog."""
        self.numbers.setdefault(family, 0)
        self.ranks[family] = ranks
        return Watched(self, family, ranks)

    def enter(self, call: int, family: int, awaited: int) -> None:
        if call not in UNCOUNTED:
            self.numbers[family] += 1
        noted = (call, family, self.numbers[family], awaited, time.time(), self._reductions, next(self._calls))
        # One assignment, which Python does in one piece: the watchdog's thread reads whole notes without a lock.
        self._entered[get_ident()] = noted

    def received(self) -> None:
        """Note that this thread has received its message, and waits until its own is received."""
        thread = get_ident()
        call, family, number, _, entered, reduction, noted = self._entered[thread]
        self._entered[thread] = call, family, number, NOBODY, entered, reduction, noted

    def leave(self) -> None:
        thread = get_ident()
        self._left[thread] = self._entered[thread][-1], time.time()

    @contextmanager
    def during(self, call: int, family: int) -> Iterator[None]:
        self.enter(call, family, NOBODY)
        try:
            yield
        finally:
            self.leave()

    def begin_reduction(self) -> None:
        self._reductions += 1

    def sites(self) -> list[CallSite]:
        sites = []
        # Read the call left first: a call entered since then is a new one
        for thread, (last, left) in [(thread, self._left.get(thread, (-1, 0.0))) for thread in list(self._entered)]:
            call, family, number, awaited, entered, reduction, noted = self._entered[thread]
            inside = last != noted
            since = int(1e3 * (entered if inside else left))
            sites.append(CallSite(call, int(inside), family, number, awaited, since, reduction))
        return sites

    def current_call(self) -> CallSite:
        """Return the oldest call that this rank is in, else the last one it left."""
        sites = self.sites() or [CallSite()]
        # Threads that are in a call come first, the longest in front; then the others, the last to leave in front.
        return min(sites, key=lambda site: (not site.inside, site.since if site.inside else -site.since))


class Watched(NamedTuple):
    log: CallLog
    family: int  # its number
    ranks: Sequence[int]  # its ranks, by their numbers in the watchdog

    def enter(self, call: int, source: Any = None) -> None:
        """Note that a call is entered; a sendrecv expects a message from ``source``, if given."""
        awaited = self.ranks[source] if call == SENDRECV and source is not None else NOBODY
        self.log.enter(call, self.family, awaited)

    def forget(self) -> None:
        """Forget the communicator, which is to be freed. Collective there."""
        del self.log.numbers[self.family], self.log.ranks[self.family]
