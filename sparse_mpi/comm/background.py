"""Reductions in the background: a `ProgressThread` does the work of one communicator while its caller computes.

MPI makes progress only inside its calls, so the progress thread makes blocking calls, which needs MPI_THREAD_MULTIPLE.
If a second thread cannot use the communicator (its job is not ``concurrent``), `ProgressThread.start` does the work at
once, with the same results.

A program ends once all started work is done: other ranks may need it, and a thread stopped inside torch aborts the
process.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  now, for Python refuses once the program has ended
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, finalize, ref

from sparse_mpi.arrays import is_on_device
from sparse_mpi.checks import present
from sparse_mpi.comm.base import Comm, RankFailure, Turns
from sparse_mpi.comm.job.uncaught import report_uncaught
from sparse_mpi.comm.streams import Branch, Marks, Side

T = TypeVar("T")
_Work = tuple["Handle[Any]", Callable[[], Any]]

# Progress threads that have not ended: the arguments of each, and the seconds to wait for it at the end of the program
_SERVERS: dict[threading.Thread, tuple[SimpleQueue[_Work | None], float | None]] = {}
_UNSEEN: set[Handle[Any]] = set()  # handles of failed work, not waited for yet
PATIENCE = 30.0  # seconds for the last work of a job that may have lost ranks and their messages
os.register_at_fork(after_in_child=_SERVERS.clear)  # a child has not their threads
os.register_at_fork(after_in_child=_UNSEEN.clear)


class Span(NamedTuple):
    """Times in `time.perf_counter` seconds at which work was given to a progress thread, begun and ended."""

    given: float
    began: float
    ended: float


class Handle(Generic[T]):
    """Started work, and its result once there is one."""

    def __init__(self, fork: Branch | None = None, turns: Turns | None = None) -> None:
        self._future: Future[T] = Future()
        self._turns = turns  # the order of the threads; None: they run side by side
        self._fork = fork  # branch of the device's streams; None: the work is the host's alone
        self._given = self._began = self._ended = perf_counter()

    def wait(self) -> T:
        """Wait for the work; return its result, or raise its error, on every call.

        On a device, later operations on the caller's stream run after the work, which may still run when this returns.
        The result belongs to the stream current at the first call.
        """
        if self._turns is not None:
            self._turns.wait_until(self.done)
        error = self._future.exception()  # waits for the work
        _UNSEEN.discard(self)  # the caller has the error: no report at the end
        if self._fork is not None:
            self._fork.follow()
        if error is not None:
            raise error
        result = self._future.result()
        return result if self._fork is None else self._fork.own(result)

    def done(self) -> bool:
        """Tell if `wait` would return or raise at once; work queued on a device may still run."""
        return self._future.done()

    def add_done_callback(self, call: Callable[[Handle[T]], None]) -> None:
        """Call ``call(handle)`` on the working thread when the work is done, or at once if it is."""
        self._future.add_done_callback(lambda _: call(self))

    @property
    def span(self) -> Span:
        return Span(self._given, self._began, self._ended)

    @property
    def marks(self) -> Marks | None:
        """Return the span as events on the device; None for work without a stream of its own."""
        return self._fork.marks if self._fork is not None else None

    def _do(self, work: Callable[[], T]) -> None:
        self._began = perf_counter()
        try:
            with self._fork.entered() if self._fork is not None else nullcontext():
                result = work()
        except BaseException as error:
            self._ended = perf_counter()
            # Before the result is set, which lets a waiting thread go on and take this out again.
            if self._turns is None or isinstance(error, Exception):  # any other error has ended the run of the ranks
                _UNSEEN.add(self)
            _call_end_at_exit()
            self._future.set_exception(error)
        else:
            self._ended = perf_counter()
            self._future.set_result(result)

    def _end_thread(self) -> None:
        error = self._future.exception()
        if error is not None and not isinstance(error, Exception):
            _UNSEEN.discard(self)
            raise error


class ProgressThread:
    """A thread that does work for ``comm`` in the order given, which must be the same on all ranks.

    Until the last handle is done only this thread may use ``comm``; a `duplicate` stays free.
    """

    def __init__(self, comm: Comm) -> None:
        self.threaded: bool = comm.job.concurrent  # True: work goes to the thread; False: `start` does it
        self._sides: dict[int, Side] = {}  # number of the device -> its side
        self._patience: float | None = PATIENCE if comm.job.elastic is not None else None
        self._last: ReferenceType[Handle[Any]] | None = None  # weak, so that results are freed with their handles
        self._thread: threading.Thread | None = None
        self._given: SimpleQueue[_Work | None] | None = None  # the thread's queue
        self._turns: Turns | None = comm.job.turns

    def start(self, work: Callable[[], T], x: object = None) -> Handle[T]:
        """Queue ``work()`` behind all earlier work, and return its handle at once.

        For an array ``x`` on a device, it runs on a stream beside the caller's.
        """
        # Work that starts other work would wait for itself in the queue: that is done at once, too.
        if not self.threaded or threading.current_thread() is self._thread:
            handle: Handle[T] = Handle()
            handle._do(work)
            handle._end_thread()
            return handle
        handle = Handle(Branch(x, self._sides) if is_on_device(x) else None, self._turns)
        last, self._last = None if self._last is None else self._last(), ref(handle)
        # Where threads take turns each work has one, which waits for the one before.
        if self._turns is not None:
            self._turns.start(partial(self._follow, last, handle, work))
            return handle
        if self._given is None or self._thread not in _SERVERS:  # a forked child has the parent's queue
            given: SimpleQueue[_Work | None] = SimpleQueue()
            self._given = given
            self._thread = threading.Thread(target=_serve, args=(given,), name="sparse_mpi progress", daemon=True)
            _SERVERS[self._thread] = given, self._patience
            _call_end_at_exit()
            self._thread.start()
            # When this object is gone, the thread ends after all that it was given.
            finalize(self, given.put, None)
        self._given.put((handle, work))
        return handle

    def _follow(self, last: Handle[Any] | None, handle: Handle[T], work: Callable[[], T]) -> None:
        if last is not None:
            present(self._turns, "only threads that take turns follow each other").wait_until(last.done)
        self._thread = threading.current_thread()
        handle._do(work)
        handle._end_thread()

    @property
    def busy(self) -> bool:
        """Return whether another thread's work is under way; always True once work was on a device."""
        # Work queued on a device may go on after its handle is done. A handle that is gone is done.
        last = self._last() if self._last is not None else None
        return threading.current_thread() is not self._thread and (
            bool(self._sides) or (last is not None and not last.done())
        )


def progress_thread_of(comm: Comm) -> ProgressThread:
    thread = comm.attributes.get(ProgressThread)
    if thread is None:
        thread = comm.attributes[ProgressThread] = ProgressThread(comm)
    return thread


def hand_over(old: Comm, new: Comm) -> None:
    if ProgressThread in old.attributes:
        new.attributes[ProgressThread] = old.attributes[ProgressThread]


def busy(comm: Comm) -> bool:
    """Say whether work is under way on ``comm`` that its other users must queue behind."""
    thread = comm.attributes.get(ProgressThread)
    return thread is not None and thread.busy


def in_turn(comm: Comm, work: Callable[[], T], x: object = None) -> T:
    return progress_thread_of(comm).start(work, x).wait() if busy(comm) else work()


def settle(comm: Comm) -> None:
    in_turn(comm, lambda: None)


def _serve(given: SimpleQueue[_Work | None]) -> None:
    while (item := given.get()) is not None:
        handle, work = item
        handle._do(work)
        del item, handle, work
    _SERVERS.pop(threading.current_thread(), None)


def _call_end_at_exit() -> None:
    # First at exit, while the watchdogs still watch this work
    atexit.unregister(end)
    atexit.register(end)


def end() -> None:
    # Let each thread end after its last work.
    for given, _ in list(_SERVERS.values()):
        given.put(None)
    for thread, (_, patience) in list(_SERVERS.items()):
        thread.join(patience)
    for handle in list(_UNSEEN):
        error = handle._future.exception()
        if error is not None and not isinstance(error, RankFailure):  # other ranks may wait for this one
            report_uncaught(error)
