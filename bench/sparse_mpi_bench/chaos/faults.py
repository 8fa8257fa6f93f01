"""Faults of a running job, played while it runs; MPI's variables identify its ranks among our descendants."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import psutil

from sparse_mpi.comm.runtime import MPI_RANKS
from sparse_mpi_bench.emulation.links import Links
from sparse_mpi_bench.emulation.schedule import DOWN

POLL, SHARE = 0.02, 0.1  # seconds from one look whether a job is ready to the next, and most of a core that it takes
LIBRARIES = ("/libmpi.so", "/libmpich.so")
KINDS = {"kill": "killed rank {}", "freeze": "froze rank {}", "link": "took the link of rank {} down"}


class Fault(NamedTuple):
    seconds: float  # time after the job is ready
    rank: int
    kind: str  # a name in `KINDS`
    lasts: float = 0.0  # seconds, infinite for good; a kill needs none


def rank_of(process: psutil.Process) -> int | None:
    try:
        told = process.environ()
    except psutil.Error:
        return None
    return next((int(told[name]) for name in MPI_RANKS if told.get(name, "").isdigit()), None)


def ranks_below() -> dict[int, int]:
    """Return the process of each rank among our descendants, without the ranks' own children."""
    found, queue = {}, [psutil.Process()]
    while queue:
        with suppress(psutil.NoSuchProcess):
            for process in queue.pop().children():
                rank = rank_of(process)
                if rank is None:
                    queue.append(process)
                else:
                    found[rank] = process.pid
    return found


def has_mpi(process: int) -> bool:
    try:
        loaded = [file.path for file in psutil.Process(process).memory_maps()]
    except psutil.Error:
        return False
    return any(name in path for name in LIBRARIES for path in loaded)


class Chaos:
    """Faults while a job runs, once it is ``ready``; the loop that waits for the job iterates over `play` meanwhile."""

    def __init__(
        self,
        faults: Iterable[Fault],
        find: Callable[[], dict[int, int]],
        ready: Callable[[], bool],
        links: Links | None = None,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._faults, self._find, self._ready, self._links, self._tell = iter(faults), find, ready, links, tell
        self.done: list[dict[str, Any]] = []
        self.lost: set[int] = set()
        self.ready_after: float | None = None
        self._due: list[tuple[float, int, Callable[[], object]]] = []  # time, order, and action
        self._numbers = count()
        self._lasting: set[tuple[str, int]] = set()  # kinds and ranks of faults that are not over

    def play(self) -> Iterator[float]:
        """Yield the seconds at which to ask for the next fault. Raises RuntimeError: a link cannot be changed."""
        start = time.monotonic()
        looked = time.monotonic()
        while not self._ready():
            now = time.monotonic()
            yield now - start + max(POLL, (now - looked) / SHARE)
            looked = time.monotonic()
        ready = time.monotonic()
        self.ready_after = ready - start
        self._plan_next(ready)
        while self._due:
            yield self._due[0][0] - start
            heappop(self._due)[2]()

    def _plan(self, when: float, todo: Callable[[], object]) -> None:
        heappush(self._due, (when, next(self._numbers), todo))

    def _plan_next(self, ready: float) -> None:
        fault = next(self._faults, None)
        if fault is not None:
            self._plan(ready + fault.seconds, partial(self._begin, fault, ready))

    def _begin(self, fault: Fault, ready: float) -> None:
        running, what = self._find(), (fault.kind, fault.rank)
        refused = None
        if fault.rank not in running:
            refused = "it had ended"
        elif what in self._lasting:
            refused = "it was so already"
        elif fault.kind == "kill" and len(running) == 1:
            refused = "it was the last one"
        else:
            end = self._suffer(fault, running[fault.rank])
            if end is not None:
                self._lasting.add(what)
                if fault.lasts < math.inf:
                    self._plan(time.monotonic() + fault.lasts, partial(self._end, what, end))
        self.done.append(fault._asdict() | {"refused": refused})
        self._tell(shown(self.done[-1]))
        self._plan_next(ready)

    def _suffer(self, fault: Fault, process: int) -> Callable[[], object] | None:
        if fault.kind == "link":
            return self._unplug(fault.rank)
        if fault.kind == "freeze":
            os.kill(process, signal.SIGSTOP)
            return partial(self._thaw, fault.rank, process)
        self.lost.add(fault.rank)
        os.kill(process, signal.SIGKILL)
        return None

    def _end(self, what: tuple[str, int], end: Callable[[], object]) -> None:
        self._lasting.discard(what)
        end()

    def _thaw(self, rank: int, process: int) -> None:
        if self._find().get(rank) == process:
            os.kill(process, signal.SIGCONT)
            self._tell(f"rank {rank} goes on")
        elif rank not in self.lost:
            self.lost.add(rank)
            self._tell(f"rank {rank} was ended while it was frozen")

    def _unplug(self, rank: int) -> Callable[[], object]:
        if self._links is None:
            raise ValueError("links must be of emulated hosts for a fault of one, got none")
        links, before = self._links, self._links.rates[rank]

        def change(new: int | None) -> None:
            links.change(tuple(new if host == rank else rate for host, rate in enumerate(links.rates)))

        def plug_in() -> None:
            change(before)
            self._tell(f"the link of rank {rank} is up again")

        change(DOWN)
        return plug_in


def shown(fault: dict[str, Any]) -> str:
    when, rank = f"after {fault['seconds']:.1f} s", fault["rank"]
    if fault["refused"]:
        return f"no {fault['kind']} of rank {rank} {when}: {fault['refused']}"
    lasts = f", for {fault['lasts']:.1f} s" if 0 < fault["lasts"] < math.inf else ""
    return f"{KINDS[fault['kind']].format(rank)} {when}{lasts}"
