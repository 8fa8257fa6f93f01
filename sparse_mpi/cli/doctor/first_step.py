"""A child of the doctor: how long do first steps spend on their kernels?

``python -m sparse_mpi.cli.doctor.first_step ALGORITHM...`` makes first steps of short and of long float32 gradients.
Numba compiles what it does not find in its cache and leaves it there, so the next process finds it. Prints a JSON
object.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import spelled

SIZES = (1 << 16, (1 << 20) + (1 << 14))  # of which a sample gives the threshold, and of which a histogram does


def make_steps(algorithm: str) -> None:
    name, options = spelled(algorithm)

    def rank(comm: Any) -> None:
        draw = np.random.default_rng(comm.rank)
        for size in SIZES:
            reducer = SparseAllreduce(size, density=0.01, comm=comm, algorithm=name, **options)
            for _ in range(2):
                reducer.step(draw.standard_normal(size, np.float32))

    World(2).run(rank)


def dispatchers() -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith("sparse_mpi.kernels.")]
    found = {id(thing): thing for module in modules for thing in vars(module).values() if hasattr(thing, "stats")}
    return list(found.values())


def main() -> None:
    start = perf_counter()
    from sparse_mpi.kernels import cpu  # noqa: F401  # or raise, where a step would do without Numba

    seconds = {"import": perf_counter() - start}
    for algorithm in sys.argv[1:]:
        start = perf_counter()
        make_steps(algorithm)
        seconds[algorithm] = perf_counter() - start
    stats = [dispatcher.stats for dispatcher in dispatchers()]
    folders = sorted({one.cache_path for one in stats if one.cache_path})
    compiled = sum(sum(one.cache_misses.values()) for one in stats)
    writable = all(os.access(folder, os.W_OK) for folder in folders)
    print(json.dumps({"seconds": seconds, "compiled": compiled, "folders": folders, "writable": writable}))


if __name__ == "__main__":
    main()
