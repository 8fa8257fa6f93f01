"""A cooperative scheduler for many ranks in one process: exactly one runs at a time.

Each rank is a thread. It runs until it waits for others; then the rank that became ready first runs. If none is ready,
the run raises a deadlock with every rank's reason to wait. With a *schedule*, a seed, a rank also gives up its turn
before every call, and the next is drawn from the ready ones.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.comm.base import RankFailure

_MAX_GROUPS_SHOWN = 8  # groups of ranks in a deadlock report


class DeadlockError(RuntimeError):
    """Raised when no rank can go on. The message says for what each rank waits."""


class MismatchError(RuntimeError):
    """Raised when ranks make different calls, or receive unexpected messages."""


class _Stopped(BaseException):
    pass


class Killed(BaseException):
    """Ends the thread of a rank that fails, as if its process were killed."""


class Call(NamedTuple):
    """Parts of a collective call that must be equal on all ranks; n stands for any number of rows."""

    name: str
    dtype: np.dtype | None = None
    shape: tuple[int | str, ...] = ()
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        array = [] if self.dtype is None else [f"{self.dtype} ({', '.join(map(str, self.shape))})"]
        return f"{self.name}({', '.join([*array, *self.details])})"


class _Rendezvous(NamedTuple):
    call: Call
    given: dict[int, Any]
    result: list[Any]


class WorldRun:
    def __init__(self, size: int, fn: Callable[[int, WorldRun], object], schedule: int | None = None) -> None:
        # No locks: all but the gates is touched only by the one thread whose turn it is. Threads are numbered: first
        # one of each rank, then background threads.
        self.size = size
        self.draws = None if schedule is None else Random(schedule)  # all decisions of a schedule
        self._fn = fn
        self._returned: list[Any] = [None] * size
        self._gates = [threading.Semaphore(0) for _ in range(size)]  # released when the turn of its thread comes
        self._threads_of = [[rank] for rank in range(size)]  # rank -> its threads
        self._rank_of = list(range(size))  # thread -> its rank
        self._ready = deque(range(size))  # threads, in the order of their turns
        self._turn = -1  # the thread that runs
        self._waiting: dict[int, Callable[[], str]] = {}  # thread -> its reason
        self._unfinished = size  # threads that have not come to their end
        self.departed: set[int] = set()  # ranks that have failed
        self.failure: BaseException | None = None  # error that ends the run; every caller is to `check`
        self._over = threading.Event()  # set by the last of them
        self.everybody: Members = Members(self, range(size))

    def results(self) -> list[Any]:
        """Run all ranks and return their results, None for a killed one; or raise the error."""
        threads = [self._thread(rank, rank, partial(self._return, rank), f"rank {rank}") for rank in range(self.size)]
        try:
            self._run_next()  # the first turn; each rank then passes it on
            self._over.wait()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt as interrupt:
            # Ranks stop at their next call; the program does not wait for their threads, which are daemons.
            self.failure = interrupt
            raise
        if self.failure is not None:
            raise self.failure
        return [None if rank in self.departed else returned for rank, returned in enumerate(self._returned)]

    def _return(self, rank: int) -> None:
        self._returned[rank] = self._fn(rank, self)

    def start(self, rank: int, work: Callable[[], object]) -> None:
        """Do ``work()`` in another thread of ``rank``, in turn with others; `wait_until` waits for it."""
        thread = len(self._gates)
        self._gates.append(threading.Semaphore(0))
        self._threads_of[rank].append(thread)
        self._rank_of.append(rank)
        self._ready.append(thread)
        self._unfinished += 1
        given = [work]  # released, with its references, before other turns
        self._thread(thread, rank, lambda: given.pop()(), f"rank {rank}, in the background")

    def _thread(self, number: int, rank: int, main: Callable[[], object], name: str) -> threading.Thread:
        def run() -> None:
            self._gates[number].acquire()
            self._run_thread(rank, main)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _run_thread(self, rank: int, main: Callable[[], object]) -> None:
        thread = self._turn
        try:
            if self.failure is None:
                main()
        # The run has failed on another rank, whose error it raises.
        except _Stopped:
            pass
        except Killed:  # waiting threads check again whether this rank is needed; its other threads end, too
            self.departed.add(rank)
            self.wake(range(self.size))
        except BaseException as error:
            self._fail(error, rank)
        self._unfinished -= 1
        if thread != rank:
            self._threads_of[rank].remove(thread)
            self.wake([rank])
        self._run_next()

    def pause(self, reason: Callable[[], str]) -> None:
        """Let other threads run until `wake` names this rank; ``reason()`` says for what it waits."""
        # Whatever this thread has to say is said before the next one is released, so only one touches the run.
        thread = self._turn
        self._waiting[thread] = reason
        self._run_next()
        self._gates[thread].acquire()
        if self.failure is not None or self.departed:
            self.check()

    def give_way(self) -> None:
        """Let a thread drawn by the schedule go on, perhaps this one; without a schedule, this one."""
        if self.draws is not None:
            thread = self._turn
            self._ready.append(thread)
            self._run_next()
            self._gates[thread].acquire()
            self.check()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done()``, which needs other threads of the rank."""
        while not done():
            self.pause(lambda: "for work in the background")

    def check(self) -> None:
        """End the running thread if the run has failed, or another thread of its rank was killed."""
        if self.failure is not None:
            raise _Stopped(f"the run ended: {self.failure}")
        if self.departed and self._rank_of[self._turn] in self.departed:
            raise Killed("another thread of this rank was")

    def wake(self, ranks: Iterable[int]) -> None:
        """Make waiting threads of ``ranks`` ready, in order; each then checks if it can go on."""
        for rank in ranks:
            for thread in self._threads_of[rank]:
                if self._waiting.pop(thread, None) is not None:
                    self._ready.append(thread)

    def _run_next(self) -> None:
        """Run a ready thread: the first, or a drawn one. Without one end the run, as finished or a deadlock."""
        if not self._ready and self._waiting:
            # This makes all waiting ranks ready; they stop one after the other.
            self._fail(DeadlockError(self._deadlock()))
        if self._ready:
            if self.draws is not None:
                self._ready.rotate(self.draws.randrange(len(self._ready)))
            self._turn = self._ready.popleft()
            self._gates[self._turn].release()
        elif not self._unfinished:
            self._over.set()

    def _fail(self, error: BaseException, rank: int | None = None) -> None:
        """Keep the first failure, and make every waiting rank ready, which then stops."""
        if self.failure is None:
            self.failure = error
            if rank is not None and sys.version_info >= (3, 11):
                error.add_note(f"raised on rank {rank} of {self.size}")
        self.wake(range(self.size))

    def _deadlock(self) -> str:
        groups: dict[str, set[int]] = {}
        waiting = set()
        for rank, threads in enumerate(self._threads_of):
            for thread in self._waiting.keys() & threads:
                groups.setdefault(self._waiting[thread](), set()).add(rank)
                waiting.add(rank)
        lines = [f"{_ranks(ranks)} waiting {reason}" for reason, ranks in groups.items()]
        if len(lines) > _MAX_GROUPS_SHOWN:
            lines[_MAX_GROUPS_SHOWN:] = [f"and {len(lines) - _MAX_GROUPS_SHOWN} more"]
        if len(waiting) < self.size:
            lines.append(f"{_ranks(set(range(self.size)) - waiting)} returned")
        return "deadlock: " + "; ".join(lines)


class Members:
    """A communicator's ranks, by their numbers in the run, its rendezvous and undelivered messages."""

    def __init__(self, run: WorldRun, members: Sequence[int]) -> None:
        self.run = run
        self.members = members  # ascending
        # (source, dest) -> rows that were sent but not received, the first of them first
        self.messages: defaultdict[tuple[int, int], deque[Array]] = defaultdict(deque)
        self._rendezvous: _Rendezvous | None = None
        self._shrinking: _Rendezvous | None = None  # apart, for a failed rank may leave the other one open
        self._revoked = False
        self._made: list[Members] = []  # groups made by `split`

    def rendezvous(self, rank: int, call: Call, given: object, combine: Callable[[list[Any]], object]) -> Any:
        """Wait for the same call on all members; the last caller combines arguments, in rank order."""
        run = self.run
        if self._revoked or run.failure is not None:
            run.check()
            self.check()
        # Open: the first member to call says which call it is, and the others must make the same one.
        current = self._rendezvous
        if current is None:
            current = self._rendezvous = _Rendezvous(call, {}, [])
        elif current.call != call:
            raise MismatchError(f"rank {rank} called {call}, {_ranks(current.given)} called {current.call}")
        # Give, and close: the last member works out the result, and the next call can be opened before others wake.
        given_by, result = current.given, current.result
        given_by[rank] = given
        if len(given_by) == len(self.members):
            result.append(combine(list(map(given_by.__getitem__, self.members))))
            self._rendezvous = None
            run.wake(self.members)
        # Wait. A rank that failed after it gave its part is no loss to this call; one that has yet to give it is.
        while not result:
            if self._revoked or run.departed:
                self.check(set(self.members).difference(given_by))
            run.pause(lambda: self._absent(current))
        return result[0]

    def broken(self, needed: Iterable[int]) -> bool:
        return self._revoked or not self.run.departed.isdisjoint(needed)

    def check(self, needed: Iterable[int] = ()) -> None:
        if self.broken(needed):
            lost = self.run.departed.intersection(self.members)
            raise RankFailure(f"{_ranks(lost) if lost else 'a communicator'} of {len(self.members)} ranks failed")

    def revoke(self) -> None:
        """Make every call on this group and derived ones raise RankFailure, also those in progress."""
        self._revoked = True
        for group in self._made:
            group.revoke()
        # Waiting threads check again, and raise.
        self.run.wake(self.members)

    def survivors(self, rank: int) -> Members:
        """Wait for this call on all members that have not failed, and return their group."""
        self.run.check()
        calling = self._shrinking = self._shrinking or _Rendezvous(Call("shrink"), {}, [])
        calling.given[rank] = None
        while not calling.result:
            # Another rank may fail meanwhile, and is waited for no longer: look anew after each pause.
            alive = [member for member in self.members if member not in self.run.departed]
            if calling.given.keys() >= set(alive):
                calling.result.append(Members(self.run, alive))
                self._shrinking = None
                self.run.wake(alive)
            else:
                self.run.pause(lambda: self._absent(calling))
        group: Members = calling.result[0]
        return group

    def split(self, colors: Sequence[int]) -> dict[int, Members]:
        members: dict[int, list[int]] = {}
        for member, color in zip(self.members, colors, strict=True):
            members.setdefault(color, []).append(member)
        groups = {color: Members(self.run, some) for color, some in members.items()}
        self._made += groups.values()
        return groups

    def _absent(self, current: _Rendezvous) -> str:
        among = f" among {_ranks(self.members)}" if len(self.members) < self.run.size else ""
        return f"for {_ranks(set(self.members).difference(current.given))} in {current.call}{among}"


def _ranks(ranks: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{low}-{high}" if low < high else f"{low}" for low, high in spans)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"
