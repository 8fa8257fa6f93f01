"""Reducers and optimizers that are made and dropped, one after the other, leave nothing behind."""

from __future__ import annotations

import pytest

from ..launch import launch, needs_mpi

pytest.importorskip("torch")

PROGRAM = """
import gc, os, threading
import numpy as np, torch
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import as_comm
from sparse_mpi.optim import DistributedOptimizer

comm, seen = as_comm(None), []
for number in range(301):
    if number in (100, 300):
        gc.collect()
        pages = int(open("/proc/self/statm").read().split()[1])
        files = len(os.listdir("/proc/self/fd"))
        seen.append((pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), files))
    if number % 2:
        reducer = SparseAllreduce(20_000, k=200, algorithm=("elect", "oktopk", "topka", "dense")[number // 2 % 4])
        for step in range(7):
            reducer.start(np.random.default_rng([step, comm.rank]).standard_normal(20_000, np.float32)).wait()
    else:
        net = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 40))
        sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        optimizer = DistributedOptimizer(sgd, net.named_parameters(), density=0.05, overlap=number % 4 > 1)
        for step in range(7):
            optimizer.zero_grad()
            net(torch.randn(8, 100)).square().sum().backward()
            optimizer.step()
(before, *others), (after, *others_after) = seen
assert others == others_after and after - before < 2**20, seen
print("flat")
"""


@needs_mpi
@pytest.mark.jobs
@pytest.mark.full("a minute: 2,000 steps on 3 ranks")
def test_300_of_them_leave_memory_threads_and_files_as_they_were():
    done = launch(3, "-c", PROGRAM, seconds=600)
    assert done.returncode == 0 and done.stdout.count("flat") == 3, done.stdout + done.stderr
