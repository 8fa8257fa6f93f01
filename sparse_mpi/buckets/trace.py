"""Record when the buckets of a step were selected, sent and finished, for timelines."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, Span, progress_thread_of
from sparse_mpi.reducer import SparseAllreduce

Interval = tuple[float, float]  # in `time.perf_counter` seconds


class BucketTrace(NamedTuple):
    """The times at which one bucket was reduced in one step."""

    span: Span  # when all its gradients were there, and when its reduction began and ended
    selections: list[Interval]
    calls: list[Interval]  # calls of the communicator


class Tracer:
    """Records what a progress thread does.

    Args:
        comm: the communicator of that thread; its calls are recorded from now on.
    """

    def __init__(self, comm: Comm) -> None:
        self.buckets: list[BucketTrace] = []  # those of the last step
        self._comm = comm
        comm.calls = []

    def begin(self) -> None:
        """Forget the last step; call this when a step begins and nothing is under way."""
        self.buckets = []
        self._comm.calls = []

    def watch(self, handle: Handle[Any], reducer: SparseAllreduce) -> None:
        """Record what ``reducer`` did when ``handle`` is done."""
        handle.add_done_callback(lambda done: self._note(done.span, reducer))

    def end(self) -> None:
        """Wait until all is recorded: a handle has its result slightly before that."""
        progress_thread_of(self._comm).start(lambda: None).wait()

    def _note(self, span: Span, reducer: SparseAllreduce) -> None:
        """Record a bucket; runs on the progress thread, before its next piece of work."""
        calls, self._comm.calls = self._comm.calls, []
        self.buckets.append(BucketTrace(span, reducer.selections, calls or []))
