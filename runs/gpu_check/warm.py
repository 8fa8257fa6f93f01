"""Fill the caches of CuPy and Numba: ``python -m runs.gpu_check.warm``, before ranks would all do so at once.

Every algorithm takes two small steps on the ranks of a `World`, on the CPU and on the GPU. No MPI is needed, and so
this also compares a GPU's results with the CPU's where there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.sparse import Layout
from sparse_mpi_bench.candidates import OWN, candidates
from sparse_mpi_bench.commands.bench_steps import checked, on_gpu, render_checks

RANKS, SIZE, DENSITY = 4, 20_000, 0.01


def warm() -> int:
    """Compile the kernels of the algorithms; return 1 if the GPU's results differ from the CPU's."""

    def run(comm: Comm) -> dict[str, dict[str, Any]]:
        base = on_gpu(np.random.default_rng([0, comm.rank]).standard_normal(SIZE, np.float32), comm)
        return checked(candidates(ALGORITHMS, [OWN]), Layout.of(SIZE), DENSITY, base, comm)

    found = World(RANKS).run(run)[0]
    print(render_checks(found))
    return int(not all(row["good"] for row in found.values()))


if __name__ == "__main__":
    raise SystemExit(warm())
