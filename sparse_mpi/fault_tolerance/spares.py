"""Ranks that wait until another one is lost, and take its place: the part of `Team` about spares.

A spare makes all that it needs with the others, and waits then, without taking a core. Where a rank was lost, the
others call it between two steps: the first of them sends it what all ranks have alike, such as weights. What the lost
rank owed is with its neighbour by then, and the spare begins with a residual of zero: any division of what is owed is
legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import elastic_of

# What is remembered of ranks that were lost.


class Departure(NamedTuple):
    """Ranks that were lost at the same time. All but ``seconds`` is the same on all survivors."""

    step: int  #: the first transaction, from 0, to which they gave nothing; the first step of a single reducer
    ranks: tuple[int, ...]  #: by their numbers at the start
    survivors: int  #: how many ranks are left
    seconds: float  #: from the failed call on this rank until it could go on

    def __str__(self) -> str:
        lost = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{lost} lost before step {self.step}; {self.survivors} ranks go on after {self.seconds:.2f} s"


class TooFewRanks(RuntimeError):
    """Raised on all survivors when there are fewer of them than the smallest number wanted."""


T = TypeVar("T")

OVER = -1  # in place of a number of transactions: the job has ended


class _Over(Exception):
    """Ends a spare's waiting."""


def _ranks_of(departures: Sequence[Departure]) -> frozenset[int]:
    """Return the ranks that were lost in ``departures``."""
    return frozenset(rank for departure in departures for rank in departure.ranks)


class Spares:
    """The part of `Team` that has ranks stand by, and calls them."""

    comm: Comm
    number: int
    members: list[int]
    completed: int
    departures: list[Departure]
    recruits: list[int]
    _everybody: Comm  # with the spares
    _spares: list[int]  # by their numbers at the start: those that have not joined, lost ones included
    _places: int  # ranks wanted: how many trained at first
    _next: Comm | None = None  # the ranks that train, or wait, when the running transaction is complete
    _joining: tuple[int, ...] = ()  # spares that are in when the running transaction is complete
    _called: bool = False  # this spare takes part in the running transaction
    _lounge: Comm | None = None  # where spares wait for a message; from `stand_by` on
    _separate: bool = False  # `stand_by` was called
    _dismissed: bool = False  # this spare knows that the job has ended
    _transact: Callable[..., Any]
    _go_on: Callable[[], int]
    _move: Callable[[Comm], None]

    @property
    def lost(self) -> frozenset[int]:
        """Return the ranks that were lost, by their numbers at the start."""
        return _ranks_of(self.departures)

    @property
    def settled(self) -> list[Departure]:
        """Return the departures that all ranks know of when this many transactions are complete.

        The newest may be known to some ranks only, until the next transaction.
        """
        return [departure for departure in self.departures if departure.step < self.completed]

    def stand_by(self) -> bytes | None:
        """Return at once on a rank that trains. A spare waits for its call. Collective.

        Call it when all is made that communicates. From then on ``comm`` has the ranks that train.

        Returns:
            None on a rank that trains, and on a spare that is never called; else what `recruit` was given.
        """
        if not self._spares:
            return None
        self._separate = True
        self.members = [number for number in self.members if number not in self._spares]

        def separate() -> None:
            self._next = self._separated()

        self._together(separate)
        return self._wait() if self.number in self._spares else None

    @property
    def waits(self) -> bool:
        """Return whether this rank is a spare that was not called."""
        return self._separate and self.number in self._spares

    @property
    def reserve(self) -> int:
        """Return how many spares wait, as all ranks know when this many transactions are complete."""
        return len(self._waiting(_ranks_of(self.settled))) if self._separate else 0

    def recruit(self, give: Callable[[], bytes]) -> None:
        """Have spares take the places of lost ranks, if there are any of both. Collective among ranks that train.

        Call it between steps.

        Args:
            give: returns what a spare needs that begins here; it is called on one rank.
        """
        if self._separate and self._chosen(_ranks_of(self.settled)):
            self._together(lambda: self._admission(give))

    def _together(self, attempt: Callable[[], T]) -> T:
        """Return ``attempt()``, a transaction of all ranks, spares included, after which ``comm`` may be another."""
        former = self.comm
        result: T = self._transact(attempt, lambda: self._everybody)
        self._admit(self._joining)
        if self._next is not None:  # otherwise ranks were lost in its meeting, and ``comm`` is as it must be
            self.comm, self._next = self._next, None
        self._move(former)
        return result

    def _wait(self) -> bytes | None:
        """Wait, as a spare, to be called; return what a rank that trains has given, or None if it never comes."""

        def attempt() -> bytes:
            self._answer()
            return self._admission(lambda: b"")

        state = b""
        while self.waits:
            try:
                state = self._together(attempt)
            except _Over:
                self._dismissed = True
                return None
            except TooFewRanks:
                if not self.members:
                    raise
        return state

    def _answer(self) -> None:
        """Wait for a message from the first rank that trains, which says how many transactions are complete."""
        assert self._lounge is not None, "spares wait after they stand by"
        order = self._lounge.sendrecv(np.empty(0, np.int64), None, self._place(self.members[0]))
        assert order is not None, "a message was expected"
        if int(order[0]) == OVER:
            raise _Over
        self.completed, self._called = int(order[0]), True

    def _call(self, order: int) -> None:
        """Send all spares that wait a message, from the first rank that trains."""
        assert self._lounge is not None, "spares wait after they stand by"
        if self.number == self.members[0]:
            for spare in self._waiting(self.lost):
                self._lounge.sendrecv(np.array([order], np.int64), self._place(spare), None)

    def _dismiss(self) -> None:
        """Tell spares that wait, as one who trains, that the job has ended; or hear it, as a spare."""
        if not self._separate or self._dismissed:
            self._dismissed = False  # if that fails, it is said once more
        elif self.waits:
            try:
                self._answer()
            except _Over:
                return
        else:
            self._call(OVER)

    def _admission(self, give: Callable[[], bytes]) -> bytes:
        """Choose who joins, make a communicator with them and the ranks that train, and return what they get."""
        if self.number not in self._spares:
            self._call(self.completed)
        joining = self._joining = tuple(self._chosen(self.lost))
        inside = sorted({*self.members, *joining})
        comm = self._next = self._everybody.split(int(self.number not in inside))
        lead, state = self.members[0], b""
        if self.number == lead and joining:
            state = give()
            for spare in joining:
                comm.sendrecv(np.frombuffer(state, np.uint8), inside.index(spare), None)
        elif self.number in joining:
            came = comm.sendrecv(np.empty(0, np.uint8), None, inside.index(lead))
            state = b"" if came is None else came.tobytes()
        return state

    def _admit(self, joining: Sequence[int]) -> None:
        """Count spares among those that train."""
        self.recruits += [spare for spare in joining if spare in self._spares]
        self.members = sorted({*self.members, *joining})
        self._spares = [spare for spare in self._spares if spare not in joining]

    def _waiting(self, lost: frozenset[int]) -> list[int]:
        """Return the spares that wait, if these ranks are lost."""
        return [spare for spare in self._spares if spare not in lost]

    def _chosen(self, lost: frozenset[int]) -> list[int]:
        """Return the spares whose turn it is to take the places of ranks that are ``lost``."""
        missing = self._places - len({*range(self._places), *self.recruits} - lost)
        return self._waiting(lost)[: max(missing, 0)]

    def _separated(self) -> Comm:
        """Return the communicator of the ranks that train, or of those that wait. Collective among all."""
        if not self._separate:
            return self._everybody
        self._lounge = elastic_of(self._everybody).yielding()
        return self._everybody.split(int(self.number in self._spares))

    def _place(self, number: int) -> int:
        """Return the rank among all of the one with this number at the start."""
        return sorted({*self.members, *self._waiting(self.lost)}).index(number)
