"""The ranks that are left of a job, and what they do together so that all of it is done, or nothing: `Team`.

A transaction is attempted, and then all ranks meet once more: a rank that leaves this meeting knows that every other
one has its result too. If a rank is lost before, the survivors shrink the communicator and attempt it again. If it is
lost after some have left the meeting, the others learn that from them, and keep the result that they have.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import hand_over
from sparse_mpi.comm.base import RankFailure, elastic_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.runtime import say_on_stderr
from sparse_mpi.fault_tolerance.spares import Departure, Spares, TooFewRanks

T = TypeVar("T")
LAST_SECONDS = 5.0  # after which a rank ends that has nothing left to do


class Team(Spares):
    """The ranks of a communicator, as many as are left. Making one is collective.

    All that the ranks do with ``comm`` from then on must be in a `transaction`, in the same order on all ranks.

    Args:
        comm: the ranks at the start; it must be elastic: MPI's where it was started with ``mpirun --with-ft ulfm``, or
            a rank of a `World`; None: all ranks of the job, see `as_comm`.
        min_ranks: the fewest ranks with which to go on.
        spares: how many of the last ranks wait from `stand_by` on, until they take the places of lost ones.

    Attributes:
        comm: the ranks that are left, of a spare that waits those that wait.
        number: of this rank at the start.
        members: the ranks of ``comm``, by their numbers at the start.
        departures: the losses so far, in their order.
        recruits: the spares that have joined so far, in their order.

    Raises:
        ValueError: a rank's loss would end the job, or there are too few ranks for ``spares``, or for ``min_ranks``
            beside them; raised on every rank.
    """

    def __init__(self, comm: Any = None, *, min_ranks: int = 1, spares: int = 0) -> None:
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
        # Talk with everybody: MPI connects two ranks where they first talk, and if one has failed may wait for ever
        self.comm.alltoallv(np.zeros(self.comm.size, np.uint8), [1] * self.comm.size)
        elastic_of(self.comm).exit_without_abort(self.close)
        self.min_ranks: int = min_ranks
        self.number: int = self.comm.rank
        self.members: list[int] = list(range(self.comm.size))
        self.departures: list[Departure] = []
        self._everybody = self.comm  # with the spares
        self._spares = self.members[self.comm.size - spares :]  # by their numbers; those that have not joined
        self.recruits: list[int] = []
        self._places = self.comm.size - spares
        self.completed: int = 0  # transactions
        self._closed = self._over = False  # close() was called; all ranks have called it

    def transaction(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt()`` does, once all ranks that are left have done it.

        Args:
            attempt: collective on ``comm``; changes nothing that another attempt would not find as it was.

        Raises:
            TooFewRanks: there are fewer than ``min_ranks``; on all survivors.
        """
        return self._transact(attempt, lambda: self.comm)

    def _transact(self, attempt: Callable[[], T], meeting: Callable[[], Comm]) -> T:
        """Carry out `transaction` by the ranks of ``meeting()``."""
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
                assert staged, "a transaction is complete only if all ranks have its result"
                self.completed += 1
                return staged[0]

    def close(self) -> None:
        """Wait until all ranks that are left have come here. Collective; the end of the program does it by itself.

        A rank that left without it would be waited for where another one is lost at the end.
        """
        if self._closed:
            return
        self._closed = True
        self._meet_at_the_end()
        # By now all ranks have done all there is to do. None may leave while others still wait for it in the meeting:
        # they meet once more, and that may fail, because the first to leave may end before the last has heard of all.
        self._over = True
        with elastic_of(self.comm).deadline(LAST_SECONDS):
            self._meet_at_the_end()

    def _meet_at_the_end(self) -> None:
        """Return when all ranks that are left have called this; help those that recover from a loss before."""
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
        """Go on with the ranks that are left; return how many transactions any of them has completed."""
        began, former, known = perf_counter(), self.comm, {*self.members, *self._spares} - self.lost
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
                # Another rank has left the meeting of an admission: those who were to join are in.
                if completed > self.completed:
                    self._admit(self._joining)
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
        """Have all that belonged to the ``former`` communicator belong to this one."""
        if self.comm is not former:
            hand_over(former, self.comm)
            self.comm.attributes[Team] = self

    def _note(self, departure: Departure) -> None:
        """Remember a departure, print it, and raise TooFewRanks if that was one too many."""
        last = self.departures[-1] if self.departures else None
        if last is not None and last.step == departure.step:  # others may have noticed both at once
            both = tuple(sorted({*last.ranks, *departure.ranks}))
            self.departures[-1] = departure._replace(ranks=both, seconds=last.seconds + departure.seconds)
        else:
            self.departures.append(departure)
        if self.members and self.number == self.members[0]:
            say_on_stderr(str(departure))
        if len(self.members) + len(self._waiting(self.lost)) < self.min_ranks:
            raise TooFewRanks(f"{departure}, but min_ranks is {self.min_ranks}")
