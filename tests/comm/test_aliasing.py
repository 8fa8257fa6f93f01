"""What is sent and what is received never share memory: from mpi4py 4.2 on a reduction takes that to mean in place."""

from __future__ import annotations

import json

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied

PROGRAM = """
import json
import re
from collections import Counter
import numpy as np, pytest
from mpi4py import MPI
import sparse_mpi
from sparse_mpi import collectives
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.mpi import MPIComm

TWO_BUFFERS = r"I?(all)?(reduce|gatherv?|toall[vw]?|reduce_scatter(_block)?|(ex)?scan)"
calls = Counter()

def memory(buffer):
    return buffer[0] if isinstance(buffer, list) else buffer

def checked(name):
    def call(self, send, receive, *others):
        calls[name] += 1
        if send is not MPI.IN_PLACE and np.may_share_memory(memory(send), memory(receive)):
            raise MemoryError(f"{name} sends what it receives into")
        return getattr(MPI.Intracomm, name)(self, send, receive, *others)
    return call

names = [name for name in dir(MPI.Intracomm) if name[0].isupper() and re.fullmatch(TWO_BUFFERS, name, re.IGNORECASE)]
Checked = type("Checked", (MPI.Intracomm,), {name: checked(name) for name in names})
world = Checked(MPI.COMM_WORLD)
x = np.arange(3.0)
with pytest.raises(MemoryError):
    world.Allreduce(x, x[:])

def tried(comm):
    for name in ALGORITHMS:
        reducer = sparse_mpi.SparseAllreduce(600, density=0.05, comm=comm, algorithm=name)
        for step in range(2):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(600, dtype=np.float32))
    keys = np.arange(5) + comm.rank
    collectives.allreduce((keys, np.ones(5)), comm=comm)
    request = collectives.allreduce_init(keys, keys, comm=comm)
    request.start(np.ones(5))
    request.wait()
    for value in (np.float64(comm.rank), np.empty(0), np.ones((2, 3))):
        comm.allreduce(np.asarray(value).reshape(-1))
        comm.allgatherv(np.atleast_1d(value))
        comm.bcast(np.atleast_1d(value), 0)

tried(MPIComm(world))
blocking, calls = calls, Counter()
tried(MPIComm(world, yield_cpu=True))
if world.rank == 0:
    print(json.dumps([sorted(blocking), sorted(calls)]))
"""


@needs_mpi
@pytest.mark.jobs
def test_no_collective_call_sends_from_the_memory_it_receives_into():
    done = launch(3, *copied("-c", PROGRAM), seconds=200)
    assert done.returncode == 0, done.stderr
    blocking, polled = json.loads(done.stdout)
    assert {"Allreduce", "Allgather", "Allgatherv"} <= set(blocking)
    assert {"Iallreduce", "Iallgather", "Iallgatherv"} <= set(polled)
