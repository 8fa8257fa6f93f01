"""The surviving ranks of a job, which all complete a transaction, or none: `Team`.

A transaction is attempted, and then all ranks meet: one that leaves this meeting knows that all others have their
result too. If a rank is lost before, the survivors shrink the communicator and attempt it again. If some have left the
meeting by then, they tell the others, which take their own result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np

from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import hand_over
from sparse_mpi.comm.base import RankFailure, elastic_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.counting import received

LOGGER = logging.getLogger("sparse_mpi")
T = TypeVar("T")
LAST_SECONDS = 5.0  # longest life of a rank that has nothing left to do
OVER = -1  # the job has ended; stands for a number of transactions


class _Over(Exception):
    """Ends a spare's waiting."""


def _ranks_of(departures: Sequence[Departure]) -> frozenset[int]:
    return frozenset(rank for departure in departures for rank in departure.ranks)


class Departure(NamedTuple):
    """Ranks lost at the same time. All but ``seconds`` is the same on all survivors."""

    step: int  #: the first transaction, from 0, to which they gave nothing; the first step of a single reducer
    ranks: tuple[int, ...]  #: numbers of the lost ranks at the start
    survivors: int  #: the number of ranks left
    seconds: float  #: time from the failed call on this rank until it could go on

    def __str__(self) -> str:
        lost = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{lost} lost before step {self.step}; {self.survivors} ranks go on after {self.seconds:.2f} s"


class TooFewRanks(RuntimeError):
    """Raised on all survivors when they are fewer than the smallest number wanted."""


class Spares:
    """The ranks that wait to replace lost ones; by their numbers at the start.

    A spare prepares with the others, and then waits without taking a core. After a loss the others call it between two
    steps, and the first member sends it the state common to all ranks, such as weights. The lost rank's residual is
    with its neighbour; the spare begins with zeros.
    """

    def __init__(self, numbers: list[int], places: int) -> None:
        self.numbers = numbers  # spares that have not joined, lost ones included
        self.places = places  # ranks wanted: the number that trained at first
        self.recruits: list[int] = []  # spares that have joined, in their order

    def waiting(self, lost: frozenset[int]) -> list[int]:
        return [spare for spare in self.numbers if spare not in lost]

    def chosen(self, lost: frozenset[int]) -> list[int]:
        missing = self.places - len({*range(self.places), *self.recruits} - lost)
        return self.waiting(lost)[: max(missing, 0)]

    def admit(self, joining: Sequence[int]) -> None:
        self.recruits += [spare for spare in joining if spare in self.numbers]
        self.numbers = [spare for spare in self.numbers if spare not in joining]


class Team:
    """The surviving ranks of a communicator. Making one is collective.

    From then on all calls on ``comm`` must be in a `transaction`, in the same order on all ranks.

    Args:
        comm: ranks at the start; must be elastic: MPI's started with ``mpirun --with-ft ulfm``, or a rank of a `World`;
            None: all ranks of the job, see `as_comm`.
        min_ranks: fewest ranks with which to go on.
        spares: number of last ranks that wait from `stand_by` on, to take lost ones' places.

    Attributes:
        comm: surviving ranks; on a waiting spare all waiting ranks.
        number: number of this rank at the start.
        members: the ranks of ``comm``, by their numbers at the start.
        departures: losses so far, in order.
        recruits: spares that have joined so far, in order.

    Raises:
        ValueError: a rank's loss would end the job, or there are too few ranks for ``spares`` and ``min_ranks``; raised
            on every rank.
    """

    def __init__(self, comm: object = None, *, min_ranks: int = 1, spares: int = 0) -> None:
        self.comm: Comm = as_comm(comm)
        with same_on_all_ranks(self.comm) as say:
            if self.comm.job.elastic is None:
                raise ValueError(
                    "comm must be one that survives the loss of a rank, got one that does not; start with "
                    "`mpirun --with-ft ulfm` of Open MPI 5, or take SparseAllreduce"
                )
            if Team in self.comm.attributes:
                raise ValueError(
                    "comm must not have a team already, whose steps would mix with others; share that team"
                )
            check_whole("spares", spares, 0, remedy="one rank must train", most=self.comm.size - 1)
            within = "there are no more ranks without spares"
            check_whole("min_ranks", min_ranks, 1, remedy=within, most=self.comm.size - spares)
            say(min_ranks=min_ranks, spares=spares)
        self.comm.attributes[Team] = self
        self.comm.job.watch(None)
        # Talk with every rank: MPI connects two ranks where they first talk, and if one has failed may wait for ever
        self.comm.alltoallv(np.zeros(self.comm.size, np.uint8), [1] * self.comm.size)
        elastic_of(self.comm).exit_without_abort(self.close)
        self.min_ranks: int = min_ranks
        self.number: int = self.comm.rank
        self.members: list[int] = list(range(self.comm.size))
        self.departures: list[Departure] = []
        self.completed: int = 0  # transactions
        self._everybody: Comm = self.comm  # all ranks, spares included
        self._spares = Spares(self.members[self.comm.size - spares :], self.comm.size - spares)
        self.recruits: list[int] = self._spares.recruits
        self._next: Comm | None = None  # the ranks that train, or wait, when the running transaction is complete
        self._joining: tuple[int, ...] = ()  # spares that are in when the running transaction is complete
        self._called = False  # this spare takes part in the running transaction
        self._lounge: Comm = self.comm  # ranks among which spares wait for a message; from `stand_by` on
        self._separate = False  # `stand_by` was called
        self._dismissed = False  # this spare knows that the job has ended
        self._closed = self._over = False  # close() was called; all ranks have called it

    @property
    def lost(self) -> frozenset[int]:
        """Return the lost ranks' numbers at the start."""
        return _ranks_of(self.departures)

    @property
    def settled(self) -> list[Departure]:
        """The departures known to all ranks; until the next transaction only some may know the newest."""
        return [departure for departure in self.departures if departure.step < self.completed]

    @property
    def waits(self) -> bool:
        """Whether this rank is a spare that was not called."""
        return self._separate and self.number in self._spares.numbers

    @property
    def reserve(self) -> int:
        """Return the number of waiting spares, equal on all ranks after as many transactions."""
        return len(self._spares.waiting(_ranks_of(self.settled))) if self._separate else 0

    def stand_by(self) -> bytes | None:
        """Return None at once on a rank that trains; a spare waits, and returns the bytes of `recruit`. Collective.

        A spare never called returns None. Call this after all collective preparations; then ``comm`` has the ranks that
        train.
        """
        if not self._spares.numbers:
            return None
        self._separate = True
        self.members = [number for number in self.members if number not in self._spares.numbers]

        def separate() -> None:
            self._next = self._separated()

        self._together(separate)
        return self._wait() if self.number in self._spares.numbers else None

    def recruit(self, give: Callable[[], bytes]) -> None:
        """Have spares, if any, take lost ranks' places. Collective among ranks that train; between steps.

        One rank calls ``give()``, which returns the state for a spare that begins here.
        """
        if self._separate and self._spares.chosen(_ranks_of(self.settled)):
            self._together(lambda: self._admission(give))

    def transaction(self, attempt: Callable[[], T]) -> T:
        """Return the result of ``attempt()``, once all survivors have it.

        ``attempt`` is collective on ``comm``, and repeatable: it leaves state unchanged until the transaction is
        complete.

        Raises:
            TooFewRanks: there are fewer than ``min_ranks``; on all survivors.
        """
        return self._transact(attempt, lambda: self.comm)

    def _transact(self, attempt: Callable[[], T], meeting: Callable[[], Comm]) -> T:
        self.comm.job.begin_reduction()
        while True:
            staged: list[T] = []
            self._joining, self._called = (), False
            try:
                staged.append(attempt())
                # Meet: whoever leaves here knows that all others have the result too.
                meeting().barrier()
            except Exception as error:
                # A message that a failure has cut short can raise anything.
                if not isinstance(error, RankFailure) and not elastic_of(meeting()).broken():
                    raise
            else:
                self.completed += 1
                return staged[0]
            completed = self._go_on()
            # Another rank has left the meeting: then this one has the result too.
            if completed > self.completed:
                if not staged:
                    raise RuntimeError("a transaction is complete only if all ranks have its result; this one has none")
                self.completed += 1
                return staged[0]

    def close(self) -> None:
        """Wait until all survivors have come here. Collective; the program's end does it by itself."""
        if self._closed:
            return
        self._closed = True
        self._meet_at_the_end()
        # By now all work is done. None may leave while others still wait for it in the meeting: they meet once more,
        # and that may fail, because the first to leave may end before the last has heard of all.
        self._over = True
        with elastic_of(self.comm).deadline(LAST_SECONDS):
            self._meet_at_the_end()

    def _meet_at_the_end(self) -> None:
        """Return when all survivors have called this; help ranks that recover from a loss before."""
        while True:
            completed = self.completed
            with suppress(TooFewRanks):
                try:
                    self._dismiss()
                    elastic_of(self._everybody).wait_for_end()
                    self._everybody.barrier()
                    completed += 1
                except RankFailure:
                    completed = self._go_on()
            if completed > self.completed:
                self.completed += 1
                return

    def _go_on(self) -> int:
        began, former, known = perf_counter(), self.comm, {*self.members, *self._spares.numbers} - self.lost
        while True:
            # Revoke: no rank shall wait for one that has come here.
            elastic = elastic_of(self._everybody)
            elastic.revoke()
            self._everybody = elastic.shrink()
            try:
                facts = self._everybody.allgather(np.array([self.number, self.completed], np.int64), control=True)
                numbers, completed = facts[:, 0].tolist(), int(facts[:, 1].max())
                if self.waits and not self._called:
                    self.completed = completed  # a spare has no part in the one that is under way
                # Another rank has left the meeting of an admission: the spares to join are in.
                if completed > self.completed:
                    self._admit()
                lost = known.difference(numbers)
                self.members = [number for number in self.members if number in numbers]
                self.comm, self._next = self._separated(), None
                break
            except Exception as error:
                if not isinstance(error, RankFailure) and not elastic_of(self._everybody).broken():
                    raise
        self._move(former)
        if lost and not self._over:  # otherwise this rank knew of the loss, or they have ended as it will
            self._note(Departure(completed, tuple(sorted(lost)), len(self.members), perf_counter() - began))
        return completed

    def _move(self, former: Comm) -> None:
        if self.comm is not former:
            hand_over(former, self.comm)
            self.comm.attributes[Team] = self

    def _note(self, departure: Departure) -> None:
        last = self.departures[-1] if self.departures else None
        if last is not None and last.step == departure.step:  # others may have noticed both at once
            both = tuple(sorted({*last.ranks, *departure.ranks}))
            self.departures[-1] = departure._replace(ranks=both, seconds=last.seconds + departure.seconds)
        else:
            self.departures.append(departure)
        if self.members and self.number == self.members[0]:
            LOGGER.warning("sparse_mpi: %s", departure)
        if len(self.members) + len(self._spares.waiting(self.lost)) < self.min_ranks:
            raise TooFewRanks(f"{departure}, but min_ranks is {self.min_ranks}")

    def _together(self, attempt: Callable[[], T]) -> T:
        former = self.comm
        result: T = self._transact(attempt, lambda: self._everybody)
        self._admit()
        if self._next is not None:  # otherwise ranks were lost in its meeting, and ``comm`` is as it must be
            self.comm, self._next = self._next, None
        self._move(former)
        return result

    def _wait(self) -> bytes | None:
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
        order = self._lounge.sendrecv(np.empty(0, np.int64), None, self._place(self.members[0]))
        completed = int(received(order)[0])
        if completed == OVER:
            raise _Over
        self.completed, self._called = completed, True

    def _call(self, order: int) -> None:
        if self.number == self.members[0]:
            for spare in self._spares.waiting(self.lost):
                self._lounge.sendrecv(np.array([order], np.int64), self._place(spare), None)

    def _dismiss(self) -> None:
        if not self._separate or self._dismissed:
            self._dismissed = False  # said once more if it fails
        elif self.waits:
            try:
                self._answer()
            except _Over:
                return
        else:
            self._call(OVER)

    def _admission(self, give: Callable[[], bytes]) -> bytes:
        if self.number not in self._spares.numbers:
            self._call(self.completed)
        joining = self._joining = tuple(self._spares.chosen(self.lost))
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

    def _admit(self) -> None:
        self._spares.admit(self._joining)
        self.members = sorted({*self.members, *self._joining})

    def _separated(self) -> Comm:
        if not self._separate:
            return self._everybody
        self._lounge = elastic_of(self._everybody).yielding()
        return self._everybody.split(int(self.number in self._spares.numbers))

    def _place(self, number: int) -> int:
        return sorted({*self.members, *self._spares.waiting(self.lost)}).index(number)
