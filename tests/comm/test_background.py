"""Reductions in the background: the same bytes as in the foreground, in the order of the starts, errors in wait."""

from __future__ import annotations

import threading
from time import sleep

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.background import ProgressThread, busy, progress_thread_of

from ..gradients import gradient
from ..launch import launch
from ..prefork import copied

N, K, BUCKETS, STEPS = 4000, 40, 3, 3


class Threaded(NullComm):
    """Moves nothing, and may be used from two threads."""

    concurrent = True


def reduced(comm, background: bool, yield_cpu: bool = False) -> list[bytes]:
    comm = comm.duplicate(yield_cpu)
    algorithms = ("oktopk", "gtopk", "adtopk")  # which make every kind of call
    reducers = [SparseAllreduce(N, k=K, comm=comm, algorithm=algorithms[bucket]) for bucket in range(BUCKETS)]
    out = []
    for number in range(STEPS):
        step = [gradient(comm.rank, number, N, bucket) for bucket in range(BUCKETS)]
        if background:
            handles = [reducer.start(g, check=True) for reducer, g in zip(reducers, step, strict=True)]
            totals = [handle.wait() for handle in handles]
        else:
            totals = [reducer.step(g) for reducer, g in zip(reducers, step, strict=True)]
        out += [total.indices.tobytes() + total.values.tobytes() for total in totals]
    return out + [reducer.residual.tobytes() for reducer in reducers]


def test_in_the_background_as_in_the_foreground(ranks):
    """With several in flight, checked for both laws."""
    for plain, background, yielding in ranks.run(
        lambda comm: (reduced(comm, False), reduced(comm, True), reduced(comm, True, yield_cpu=True))
    ):
        assert plain == background == yielding


def test_mpi_reduces_in_a_thread_of_its_own(ranks):
    def where(comm):
        seen = progress_thread_of(comm.duplicate()).start(threading.current_thread).wait()
        return comm.job.concurrent, seen is not threading.current_thread()

    assert all(concurrent == elsewhere for concurrent, elsewhere in ranks.run(where))


def test_mistakes_are_raised_by_wait_on_every_rank(ranks):
    def wrong(comm):
        reducer = SparseAllreduce(N, k=K, comm=comm.duplicate())
        handle = reducer.start(np.zeros(N - (comm.rank == 0), np.float32))
        with pytest.raises(ValueError, match="must have 4000 elements"):
            handle.wait()
        return reducer.start(np.ones(N, np.float32)).wait().nnz  # and it can go on

    assert all(nnz > 0 for nnz in ranks.run(wrong))


def test_a_step_queues_behind_what_is_under_way():
    comm, order, gate = Threaded(2), [], threading.Event()
    reducer = SparseAllreduce(N, k=K, comm=comm)
    progress_thread_of(comm).start(lambda: (gate.wait(100), order.append("first")))
    assert busy(comm)
    threading.Timer(0.05, gate.set).start()
    reducer.step(np.ones(N, np.float32))
    assert order == ["first"]
    assert not busy(comm)


def test_order_callbacks_and_spans():
    worker, order = ProgressThread(Threaded(2)), []
    handles = [worker.start(lambda i=i: order.append(i) or i) for i in range(20)]
    handles[3].add_done_callback(lambda handle: order.append(f"saw {handle.wait()}"))
    assert [handle.wait() for handle in handles] == list(range(20))
    assert [i for i in order if isinstance(i, int)] == list(range(20)) and "saw 3" in order
    for before, after in zip(handles, handles[1:], strict=False):
        assert before.span.given <= before.span.began <= before.span.ended <= after.span.began


def test_work_started_by_the_progress_thread_itself_is_done_at_once():
    worker = ProgressThread(Threaded(2))
    assert worker.start(lambda: worker.start(lambda: 7).wait()).wait() == 7


def test_a_progress_thread_that_is_dropped_ends_its_thread():
    before = threading.active_count()
    worker = ProgressThread(Threaded(2))
    worker.start(lambda: None).wait()
    thread = worker._thread
    del worker
    thread.join(100)
    assert not thread.is_alive() and threading.active_count() == before


ENDING = """
import os, sys, threading
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.kernels import threads

threads.MIN_ENTRIES_PER_THREAD = n = 1 << 16  # several threads of the kernels
Threaded, began = type("Threaded", (NullComm,), {"concurrent": True}), threading.Event()
if sys.argv[1] == "numpy":
    from numpy import float32, ones
    waits = [lambda: None]
else:
    from torch import float32, ones
    waits = [lambda: None, began.wait, lambda: progress.start(lambda: None).wait()]
for wait in waits:
    child = os.fork()
    if not child:
        break  # and ends as a program does
    print(os.waitpid(child, 0)[1], flush=True)
else:
    sys.exit()
reducer = SparseAllreduce(4 * n, k=n, comm=Threaded(2))
handle = reducer.start(ones(4 * n, dtype=float32))
handle.add_done_callback(lambda done: print(done.wait().nnz >= n))
progress = progress_thread_of(reducer.comm)
progress.start(lambda: (began.set(), [ones((512, 512)) @ ones((512, 512)) for _ in range(20)]))
progress.start(lambda: print("last"))
wait()
"""


@pytest.mark.parametrize(("library", "times"), [("numpy", 1), pytest.param("torch", 3, marks=pytest.mark.jobs)])
def test_a_program_ends_once_all_that_it_started_is_done(library, times):
    """Without torch, which loads it, the last work is the first that needs the thread pool of the kernels.

    Torch aborts where a thread of its is left: programs end before what they started has begun, in it, and after it.
    """
    command = ("-c", ENDING, library)
    done = launch(None, *(command if library == "numpy" else copied(*command)), OMP_NUM_THREADS="2")
    assert done.returncode == 0 and done.stdout.splitlines() == ["True", "last", "0"] * times, done.stdout + done.stderr


UNSEEN = """
import sys
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.job.uncaught import on_uncaught

class Threaded(NullComm):
    concurrent = sys.argv[1] == "threaded"

on_uncaught(lambda error: print("ends with", repr(error)))
progress = progress_thread_of(Threaded(2))
seen, unseen = (progress.start(lambda kind=kind: [][kind]) for kind in (0, 1))
try:
    seen.wait()
except IndexError:
    print("caught")
"""


@pytest.mark.parametrize("kind", ["threaded", "at once"])
def test_an_error_that_nobody_waits_for_is_not_lost(kind):
    """Other ranks may wait for this one in what has failed here."""
    done = launch(None, "-c", UNSEEN, kind)
    assert done.stdout.splitlines() == ["caught", "ends with IndexError('list index out of range')"], done.stderr


@pytest.mark.ranks(3)
def test_a_reducer_is_made_after_what_another_has_begun(ranks):
    """Nothing else may use a communicator until the work in its background is done."""

    def body(comm):
        done = []
        progress_thread_of(comm).start(lambda: (sleep(0.02), comm.allreduce(np.ones(9)), done.append(1)))
        SparseAllreduce(N, k=K, comm=comm)
        assert done == [1]

    ranks.run(body)
