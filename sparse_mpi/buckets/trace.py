"""When what happened to the buckets of a step: for timelines."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, Span, progress_thread_of
from sparse_mpi.reducer import SparseAllreduce

Interval = tuple[float, float]  # in `time.perf_counter` seconds


class BucketTrace(NamedTuple):
    """When what happened to a bucket in one step."""

    span: Span  # all its gradients there, its reduction begun and ended
    selections: list[Interval]
    calls: list[Interval]  # of the communicator


class Tracer:
    """Watches what a progress thread does.

    Args:
        comm: the thread's; its calls are noted from here on.
    """

    def __init__(self, comm: Comm) -> None:
        self.buckets: list[BucketTrace] = []  # of the last step
        self._comm = comm
        comm.calls = []

    def begin(self) -> None:
        """A step begins, with nothing under way."""
        self.buckets = []
        self._comm.calls = []

    def watch(self, handle: Handle[Any], reducer: SparseAllreduce) -> None:
        """Note what ``reducer`` does, once ``handle`` is done."""
        handle.add_done_callback(lambda done: self._note(done.span, reducer))

    def end(self) -> None:
        """Wait until all is noted: a handle has its result a moment before."""
        progress_thread_of(self._comm).start(lambda: None).wait()

    def _note(self, span: Span, reducer: SparseAllreduce) -> None:
        """On the thread that did it, before it does anything else."""
        calls, self._comm.calls = self._comm.calls, []
        self.buckets.append(BucketTrace(span, reducer.selections, calls or []))
