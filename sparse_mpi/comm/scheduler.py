"""Many ranks in one process, exactly one of which runs at a time: the one that has the baton.

Each rank is a thread. It keeps the baton until it has to wait for others, and then the rank that became ready
first gets it. So a run is deterministic, and when nobody can get the baton it is a deadlock. The error
tells what every rank waits for.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.arrays import Array

_SHOWN = 8  # groups of ranks in a deadlock report


class DeadlockError(RuntimeError):
    """No rank can go on. The message tells what each of them waits for."""


class MismatchError(RuntimeError):
    """Ranks do not take part in the same call, or send what the other side does not expect."""


class _Stopped(BaseException):
    """Ends the thread of a rank of a run that failed."""


class Call(NamedTuple):
    """What must be equal on all ranks of a collective call. n stands for a free number of rows."""

    name: str
    dtype: np.dtype | None = None
    shape: tuple[int | str, ...] = ()
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        array = [] if self.dtype is None else [f"{self.dtype} ({', '.join(map(str, self.shape))})"]
        return f"{self.name}({', '.join([*array, *self.details])})"


class _Meeting(NamedTuple):
    """A collective call in progress: who came with what, and the result once all did."""

    call: Call
    given: dict[int, Any]
    result: list[Any]


class Run:
    """One run: the baton, and who waits for it."""

    def __init__(self, size: int, fn: Callable[[int, Run], Any]) -> None:
        self.size = size
        self._fn = fn
        self._returned: list[Any] = [None] * size
        self._gates = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._waiting: dict[int, Callable[[], str]] = {}  # rank -> tells what for
        self._unfinished = size
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self.everybody = Group(self, range(size))

    def results(self) -> list[Any]:
        threads = [
            threading.Thread(target=self._rank_main, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        try:
            self._pass_baton()
            self._over.wait()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt as interrupt:
            self._failure = interrupt
            raise
        if self._failure is not None:
            raise self._failure
        return self._returned

    def _rank_main(self, rank: int) -> None:
        self._gates[rank].acquire()
        try:
            if self._failure is None:
                self._returned[rank] = self._fn(rank, self)
        except _Stopped:
            pass
        except BaseException as error:
            self._fail(error, rank)
        self._unfinished -= 1
        self._pass_baton()

    def wait(self, rank: int, until: Callable[[], bool], reason: Callable[[], str]) -> None:
        """Give the baton away until ``until()`` holds; `wake` makes it worth looking."""
        self.check()
        while not until():
            self._waiting[rank] = reason
            self._pass_baton()
            self._gates[rank].acquire()
            self.check()

    def check(self) -> None:
        """Stop this rank if the run failed."""
        if self._failure is not None:
            raise _Stopped(f"the run ended: {self._failure}")

    def wake(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if self._waiting.pop(rank, None) is not None:
                self._ready.append(rank)

    def _pass_baton(self) -> None:
        """Let the next rank run. If none can, end the run, as finished or as a deadlock."""
        if not self._ready and self._waiting:
            self._fail(DeadlockError(self._deadlock()))
        if self._ready:
            self._gates[self._ready.popleft()].release()
        elif not self._unfinished:
            self._over.set()

    def _fail(self, error: BaseException, rank: int | None = None) -> None:
        """Keep the first failure and let every waiting rank come back to stop."""
        if self._failure is None:
            self._failure = error
            if rank is not None and sys.version_info >= (3, 11):
                error.add_note(f"raised on rank {rank} of {self.size}")
        self.wake(sorted(self._waiting))

    def _deadlock(self) -> str:
        groups: dict[str, list[int]] = {}
        for rank in sorted(self._waiting):
            groups.setdefault(self._waiting[rank](), []).append(rank)
        lines = [f"{_ranks(ranks)} waiting {reason}" for reason, ranks in groups.items()]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
        if len(self._waiting) < self.size:
            lines.append(f"{self._others(self._waiting)} returned")
        return "deadlock: " + "; ".join(lines)

    def _others(self, ranks: Iterable[int]) -> str:
        return _ranks(set(range(self.size)).difference(ranks))


class Group:
    """Ranks that talk among themselves: all of a run, or some. Ranks are called by their numbers in the run.

    It has the meeting of the collective call in progress and the messages on their way.
    """

    def __init__(self, run: Run, members: Sequence[int]) -> None:
        self.run = run
        self.members = members  # ascending
        self.messages: dict[tuple[int, int], Array] = {}  # (source, dest) -> rows not yet taken
        self._meeting: _Meeting | None = None

    def meet(self, rank: int, call: Call, given: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for the same call on all members; the last to come combines what was given, in rank order."""
        self.run.check()
        meeting = self._meeting
        if meeting is None:
            meeting = self._meeting = _Meeting(call, {}, [])
        elif meeting.call != call:
            raise MismatchError(f"rank {rank} called {call}, {_ranks(meeting.given)} called {meeting.call}")
        meeting.given[rank] = given
        if len(meeting.given) < len(self.members):
            self.run.wait(rank, lambda: bool(meeting.result), lambda: self._absent(meeting))
        else:
            meeting.result.append(combine([meeting.given[member] for member in self.members]))
            self._meeting = None
            self.run.wake(self.members)
        return meeting.result[0]

    def split(self, colors: Sequence[int]) -> dict[int, Group]:
        """For each colour the group of those members to which ``colors`` gives it."""
        members: dict[int, list[int]] = {}
        for member, color in zip(self.members, colors, strict=True):
            members.setdefault(color, []).append(member)
        return {color: Group(self.run, some) for color, some in members.items()}

    def _absent(self, meeting: _Meeting) -> str:
        """Who has not come to the meeting; a group that is not everybody is named too."""
        among = f" among {_ranks(self.members)}" if len(self.members) < self.run.size else ""
        return f"for {_ranks(set(self.members).difference(meeting.given))} in {meeting.call}{among}"


def _ranks(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{low}-{high}" if low < high else f"{low}" for low, high in spans)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"
