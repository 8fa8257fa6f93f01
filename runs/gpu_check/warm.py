"""Fill the caches of CuPy and Numba: ``python -m runs.gpu_check.warm``, before ranks would all do so at once.

Every algorithm takes two small steps on the ranks of a `World`, on the CPU and on the GPU. No MPI is needed, and so
this also compares a GPU's results with the CPU's where there is none.
"""

from __future__ import annotations

from argparse import Namespace

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.world import World
from sparse_mpi_bench.commands.bench_allreduce import agree

RANKS, SIZE, DENSITY = 4, 20_000, 0.01


def warm() -> int:
    """Compile what the algorithms launch; return 1 if the GPU's results differ from those of the CPU."""
    options = Namespace(n=SIZE, model=None, density=DENSITY, steps=2, seed=0, algorithms=ALGORITHMS)
    status = 0
    for output in World(RANKS).run(lambda comm: list(agree(options, comm)))[0]:
        if isinstance(output, str):
            print(output)
        elif isinstance(output, int):
            status = output
    return status


if __name__ == "__main__":
    raise SystemExit(warm())
