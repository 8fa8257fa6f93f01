"""What the library leaves alone: the interpreter, threads, and errors that the program catches."""

from __future__ import annotations

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied

pytestmark = [needs_mpi, pytest.mark.jobs]
OBJECTS = """
import atexit, os, sys, threading
import numpy as np, torch
from mpi4py import MPI

registered, register = [], atexit.register
atexit.register = lambda call, *given, **named: (registered.append(call), register(call, *given, **named))[0]
sys.excepthook = lambda *failed: None

def state():
    return os._exit, sys.exit, threading.enumerate(), [thread.name for thread in threading.enumerate()]

def ours():
    return [call for call in registered if call.__module__.startswith("sparse_mpi")]

before, hook = state(), sys.excepthook
import sparse_mpi
from sparse_mpi import checkpoint, ddp, fault_tolerance
from sparse_mpi.optim import DistributedOptimizer

assert state() == before and sys.excepthook is hook and not ours(), "importing the library changes nothing"
x = np.arange(100, dtype=np.float32) + MPI.COMM_WORLD.rank
comm = sparse_mpi.comm.as_comm()
parts = comm.duplicate(), comm.split(0), comm.duplicate(yield_cpu=True)
sparse_mpi.sparse_allreduce(x, k=5)
sparse_mpi.SparseAllreduce(100, k=5).step(x)
sparse_mpi.allreduce({1: 2.0})
sparse_mpi.allgather({1: 2.0}), sparse_mpi.reduce({1: 2.0}), sparse_mpi.reduce_scatter({1: 2.0})
request = sparse_mpi.allreduce_init([1, 2])
model = torch.nn.Linear(3, 2)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), density=0.5)
local = sparse_mpi.DiLoCo(model, *[torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)], sync_every=2)
assert state() == before, state()
assert not ours(), "nothing of ours is called at exit, whatever Numba and torch have there"
sparse_mpi.watch()
assert "sparse_mpi watchdog" in [thread.name for thread in threading.enumerate()], "which was asked for"
print("left alone")
"""
CAUGHT = """
import numpy as np, pytest, torch
import sparse_mpi
from sparse_mpi.collectives import inputs
from sparse_mpi.comm import as_comm
from sparse_mpi.optim import DistributedOptimizer

comm, combined = as_comm(), inputs.combined

def exhausted(*given):
    raise MemoryError("for the test")

# Of a preparation, on one rank: all ranks raise
for broken in (0, 1):
    if comm.rank == broken:
        inputs.combined = exhausted
    with pytest.raises(MemoryError if comm.rank == broken else ValueError, match="for the test"):
        sparse_mpi.allreduce({7: 1.0})
    inputs.combined = combined
assert sparse_mpi.allreduce({7: 1.0}) == {7: 2.0}

# Of a gradient's hook
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), density=0.5)

def backward():
    model(torch.full((5, 4), 1.0 + comm.rank)).sum().backward()

hook = model[0].weight.register_hook(exhausted)
for _ in range(2):
    with pytest.raises(MemoryError):
        backward()
    optimizer.zero_grad()
hook.remove()
backward()
optimizer.step()
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
everywhere = comm.allgather(weights)
assert np.array_equal(everywhere[0], everywhere[1]) and optimizer.reduction.report.traffic.sent > 0
print("goes on")
"""


def test_importing_the_library_changes_nothing_and_public_objects_start_no_thread():
    done = launch(2, "-c", OBJECTS)  # not a copy of what has imported it
    assert done.stdout.splitlines() == ["left alone"] * 2, done.stderr


def test_an_error_of_a_preparation_or_of_a_hook_is_the_callers_and_the_job_goes_on():
    done = launch(2, *copied("-c", CAUGHT))
    assert done.stdout.splitlines() == ["goes on"] * 2, done.stderr
