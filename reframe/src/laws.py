"""Take steps of every algorithm on all ranks, asserting both laws, and say on each rank which of them held."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms import ALGORITHMS

comm = MPI.COMM_WORLD
for name in ALGORITHMS:
    reducer = SparseAllreduce([(128, 64), (1808,)], density=0.05, comm=comm, algorithm=name)
    for step in range(3):
        gradient = np.random.default_rng([step, comm.rank]).standard_normal(10_000, dtype=np.float32)
        reducer.step(gradient, check=True)
    print(f"rank {comm.rank} of {comm.size}: {name} keeps both laws", flush=True)
