"""Record when a step's buckets were selected, sent and finished; on a device by events on its streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, Span, progress_thread_of
from sparse_mpi.comm.streams import Marks, mark

Interval = tuple[float, float]  # two times of `time.perf_counter`


class BucketTrace(NamedTuple):
    span: Span  # times at which all its gradients were there, and its reduction began and ended
    selections: list[Interval]
    calls: list[Interval]  # calls of the communicator
    marks: Marks | None = None  # events of the span, on a device


class Tracer:
    """Records the work of the progress thread of ``comm`` on the device of ``x``."""

    def __init__(self, comm: Comm, x: object = None) -> None:
        self.buckets: list[BucketTrace] = []  # buckets of the last step
        self._comm, self._x = comm, x
        self._given: object = None  # the mark before the reduction that is given next
        comm.traffic.calls = []  # records of calls, None before

    def mark(self) -> Any:
        """Return an event behind all work on the caller's stream; None for the host."""
        return mark(self._x)

    def begin(self, anew: bool) -> None:
        """Prepare for a reduction; ``anew`` forgets the last step, with nothing under way."""
        if anew:
            self.buckets = []
            self._comm.traffic.calls = []
        self._given = self.mark()

    def watch(self, handle: Handle[Any], selections: Callable[[], list[Interval]]) -> None:
        handle.add_done_callback(lambda done: self._note(done, selections()))

    def end(self) -> None:
        """Wait until all is recorded: a handle has its result slightly before that."""
        progress_thread_of(self._comm).start(lambda: None).wait()

    def _note(self, done: Handle[Any], selections: list[Interval]) -> None:
        """Record a bucket; runs on the progress thread, before its next piece of work."""
        # One thread reduces one bucket after the other: calls since the last one belong to this one
        calls, self._comm.traffic.calls = self._comm.traffic.calls, []
        marks = done.marks
        if marks is None and self._given is not None:  # done at once, on the caller's stream
            marks = Marks(self._given, self._given, self.mark())
        self.buckets.append(BucketTrace(done.span, selections, calls or [], marks))
