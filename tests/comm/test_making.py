"""MPI's communicators are made one at a time, freed when no rank uses them, and not called after MPI's end."""

from __future__ import annotations

from itertools import count

import pytest

from sparse_mpi.comm.job.watchdog import WatchdogThread

from ..launch import launch, needs_mpi
from ..prefork import copied

pytestmark = needs_mpi
DROPPED = """
import gc, os, sys, threading
import torch
from mpi4py import MPI
from sparse_mpi.optim import DistributedOptimizer

weights = torch.nn.Parameter(torch.ones(50))

def made():
    optimizer = DistributedOptimizer(torch.optim.SGD([weights], lr=0.1), density=0.1)
    weights.sum().backward()
    optimizer.step()
    return optimizer

def found():
    another = MPI.COMM_WORLD.Dup()
    number = another.py2f()  # handles are given again once they are free
    another.Free()
    return number

def collect():
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "sparse_mpi progress":
            thread.join(60)

def used():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))

times = 40
optimizer, number = made(), found()
for turn in range(times):
    del optimizer
    optimizer = made()
    if turn == times // 2:
        half = used()
assert used()[0] - half[0] < 1 << 21 and used()[1] == half[1], (half, used())
del optimizer
collect()
threads = threading.active_count()
optimizer = made()
print(abs(found() - number) < 20, threads, len(weights._post_accumulate_grad_hooks))
"""
USES = """
import gc
import numpy as np
from sparse_mpi.comm import as_comm

world = as_comm()

def living():
    gc.collect()
    number = world.duplicate()._comm.py2f()  # after what nobody uses was freed; dropped at once
    return number

first = living()
kept = world.duplicate()
if kept.rank:
    del kept  # on one rank only
second = living()
assert second != first and living() == second, "it is in use on a rank"
kept = None
assert living() in (first, second) and living() == first, "it was freed"
part = world.duplicate().split(0)  # keeps the one that it was made of
assert living() == living()
assert part.allreduce(np.ones(1)) == 2 and part._whole.allreduce(np.ones(1)) == 2
inner, outer = part._comm, part._whole._comm
view = part.yielding()
del part
assert living() and view.allreduce(np.ones(1)) == 2
del view
world.job.hosts()
assert living() and not inner and not outer, "both were freed"
print("as they should")
"""
THREADS = """
import threading
import numpy as np
from mpi4py import MPI
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import making

rank = MPI.COMM_WORLD.rank
comms = [MPI.COMM_WORLD.Dup() for _ in range(4)]
inside, sums = [], {}

def reduce(number):
    for _ in range(5):
        with making.alone(MPI, comms[number]):
            inside.append(number)
            assert inside == [number]
            inside.pop()
    reducer = SparseAllreduce(100, k=100, comm=comms[number], algorithm="topka")
    sums[number] = float(reducer.step(np.ones(100, np.float32)).values.sum())

threads = [threading.Thread(target=reduce, args=(number,)) for number in range(4)]
for thread in threads[::1 - 2 * (rank % 2)]:
    thread.start()
for thread in threads:
    thread.join()
assert sums == dict.fromkeys(range(4), 300.0), sums
print("reduced")
"""
FINALIZED = """
import numpy as np, pytest
from mpi4py import MPI
import sparse_mpi
from sparse_mpi.comm import as_comm

made = sparse_mpi.SparseAllreduce(100, k=5)
MPI.Finalize()
calls = [lambda: made.step(np.ones(100, np.float32)), lambda: sparse_mpi.SparseAllreduce(100, k=5), as_comm]
calls += [made.comm.barrier, made.comm.duplicate, made.comm.job.hosts, lambda: made.comm.split(0)]
for call in calls:
    with pytest.raises(RuntimeError, match="MPI must not be finalised before the last call"):
        call()
print("refused")
"""
UNINITIALISED = """
import mpi4py
mpi4py.rc.initialize = False
from sparse_mpi.comm import as_comm
try:
    as_comm()
except RuntimeError as error:
    print(error)
"""
FULL = """
from mpi4py import MPI
from sparse_mpi.comm import as_comm

class Full:
    def Dup(self):
        raise MPI.Exception(MPI.ERR_INTERN)  # as Open MPI's behind 16,000 of them

comm = as_comm()
comm._comm = Full()
try:
    comm.duplicate()
except RuntimeError as error:
    print(str(error).partition(";")[0])
"""


@pytest.mark.jobs
def test_dropped_optimizers_leave_nothing():
    done = launch(2, *copied("-c", DROPPED))
    # The main thread, and the hook of the one that is there
    assert done.stdout.splitlines() == ["True 1 1"] * 2, done.stderr


def test_a_communicator_is_freed_when_no_rank_uses_it_or_a_part_of_it():
    done = launch(2, "-c", USES)
    assert done.stdout.splitlines() == ["as they should"] * 2, done.stderr


@pytest.mark.jobs
def test_several_threads_make_reducers_at_once():
    done = launch(3, *copied("-c", THREADS))
    assert done.stdout.splitlines() == ["reduced"] * 3, done.stderr


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (FINALIZED, "refused"),
        (UNINITIALISED, "MPI must be initialised before a communicator is used, and is not; call MPI.Init()"),
        (FULL, "MPI made no communicator: MPI_ERR_INTERN: internal error"),
    ],
    ids=["finalised", "not initialised", "no more communicators"],
)
def test_a_call_without_mpi_is_an_error(program, text):
    done = launch(2, "-c", program)
    assert (done.returncode, done.stdout.splitlines()) == (0, [text] * 2), done.stderr


def test_the_end_of_all_programs_is_asked_for_whatever_the_order():
    """Watchdogs that threads made have another order on other ranks, which wait for all of them."""

    class Monitor:
        def __init__(self, awaited=None):
            self.asked, self.awaited = False, awaited

        def all_ended(self):
            def passed():
                self.asked = True
                return self.awaited is None or self.awaited.asked

            return passed

        def poll(self):
            return

        announce_end = poll

    second = Monitor()
    looks = count()
    WatchdogThread().wait([Monitor(second), second], lambda: next(looks) > 3)
    assert second.asked
