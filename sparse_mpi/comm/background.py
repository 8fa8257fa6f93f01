"""Reductions in the background: a `Lane` does the work of one communicator while its caller computes.

MPI moves messages only inside its calls, so something must be inside: the lane is a thread that makes blocking calls,
which needs MPI_THREAD_MULTIPLE. Where a communicator cannot be used from a second thread (its ``concurrent`` is False),
work is done at once, in `Lane.start`: the results are the same, and nothing overlaps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, finalize, ref

from sparse_mpi.comm.base import Comm
from sparse_mpi.comm.streams import Branch, Side, branch

T = TypeVar("T")
_Work = tuple["Handle[Any]", Callable[[], Any]]


class Span(NamedTuple):
    """When work was given to a lane, begun and ended, in `time.perf_counter` seconds."""

    given: float
    began: float
    ended: float


class Handle(Generic[T]):
    """Work that was started, and its result once it has one."""

    def __init__(self, fork: Branch | None = None) -> None:
        self._future: Future[T] = Future()
        self._fork = fork
        self._given = self._began = self._ended = perf_counter()

    def wait(self) -> T:
        """What the work returned, when it is done; the same however often it is called.

        On a device, what the caller queues on its stream after this comes after the work, which need not have ended
        when this returns. The result belongs to the stream that is the current one when it is first asked for.

        Raises:
            Exception: what the work raised.
        """
        error = self._future.exception()
        if self._fork is not None:
            self._fork.follow()
        if error is not None:
            raise error
        result = self._future.result()
        return result if self._fork is None else self._fork.own(result)

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once; what it leaves to the device may go on."""
        return self._future.done()

    def add_done_callback(self, call: Callable[[Handle[T]], None]) -> None:
        """Have ``call(handle)`` made when the work is done, by the thread that did it; at once if it is done."""
        self._future.add_done_callback(lambda _: call(self))

    @property
    def span(self) -> Span:
        """When this was given, begun and ended; of work that is done."""
        return Span(self._given, self._began, self._ended)

    def _do(self, work: Callable[[], T]) -> None:
        self._began = perf_counter()
        try:
            with self._fork.entered() if self._fork is not None else nullcontext():
                result = work()
        except BaseException as error:
            self._ended = perf_counter()
            self._future.set_exception(error)
        else:
            self._ended = perf_counter()
            self._future.set_result(result)


class Lane:
    """One thread that works for ``comm``, in the order in which work is given: the same on all ranks.

    Until the last handle is done nobody else may use ``comm``; a `duplicate` of it stays free.
    """

    def __init__(self, comm: Comm) -> None:
        self.threaded = comm.concurrent
        self._sides: dict[int, Side] = {}
        self._given: SimpleQueue[_Work | None] = SimpleQueue()
        self._last: ReferenceType[Handle[Any]] | None = None  # nobody holds it any more when it is done and forgotten
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], T], x: Any = None) -> Handle[T]:
        """Have ``work()`` done after all that was started before.

        Args:
            work: may use the communicator.
            x: the array that it is about; one on a device is worked on beside the caller's stream.
        """
        if not self.threaded or threading.current_thread() is self._thread:
            handle: Handle[T] = Handle()
            handle._do(work)
            return handle
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._given,), name="sparse_mpi lane", daemon=True)
            self._thread.start()
            finalize(self, self._given.put, None)
        handle = Handle(branch(x, self._sides))
        self._last = ref(handle)
        self._given.put((handle, work))
        return handle

    @property
    def busy(self) -> bool:
        """Whether work is under way that the calling thread is not itself doing.

        Once there was work on a device this says so: what that queued there may go on after it is done here.
        """
        last = self._last() if self._last is not None else None
        return threading.current_thread() is not self._thread and (
            bool(self._sides) or (last is not None and not last.done())
        )


def lane_of(comm: Comm) -> Lane:
    """The lane of ``comm``, made on first use."""
    lane = comm.attributes.get(Lane)
    if lane is None:
        lane = comm.attributes[Lane] = Lane(comm)
    return lane


def busy(comm: Comm) -> bool:
    """Whether something is under way on ``comm`` that its users must queue behind."""
    lane = comm.attributes.get(Lane)
    return lane is not None and lane.busy


def _serve(given: SimpleQueue[_Work | None]) -> None:
    """Do what comes until None comes; holds on to nothing in between."""
    while (item := given.get()) is not None:
        handle, work = item
        handle._do(work)
        del item, handle, work
