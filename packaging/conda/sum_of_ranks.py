"""Four ranks of this process, and those of mpiexec, each give 1 to every entry: the sum is the number of ranks."""

import numpy as np
from mpi4py import MPI

import sparse_mpi


def summed(comm):
    """Return the entries of the sum of all ranks."""
    return sparse_mpi.sparse_allreduce(np.ones(1000), k=10, comm=comm).total.values


assert all((values == 4).all() and len(values) for values in sparse_mpi.World(4).run(summed))
values = summed(MPI.COMM_WORLD)
assert len(values) and (values == MPI.COMM_WORLD.size).all(), values
print(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}: {len(values)} entries")
