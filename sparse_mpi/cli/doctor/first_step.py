"""The seconds that first steps spend on their kernels, and whether the next process finds them compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import can_carry, spelled

SIZES = (1 << 16, (1 << 20) + (1 << 14))  # for a threshold from a sample, and from a histogram
DEFAULTS = ("oktopk", "elect")  # the algorithms of `SparseAllreduce` and of `DistributedOptimizer`


def first_step(versions: Mapping[str, str], algorithms: Sequence[str] = DEFAULTS) -> Finding:
    """Make first steps, for which Numba compiles the kernels missing in its cache, and stores them there."""
    if "numba" not in versions:
        remedy = "install the extra cpu (numba): selection on the CPU takes a fraction of the time with it"
        return Finding("kernels", "NumPy's; nothing to compile", "advice", remedy)
    start = perf_counter()
    try:
        from sparse_mpi.kernels.cpu.passes import append  # raises where a step would work without Numba

        for algorithm in algorithms:
            make_steps(algorithm)
    except Exception as error:
        remedy = "uninstall numba, or install a version that fits NumPy's"
        return Finding("kernels", f"they cannot be compiled: {error!r}", "broken", remedy)
    text, folder = f"first steps: {perf_counter() - start:.1f} s", append.stats.cache_path
    if append.stats.cache_misses and not (folder and os.access(folder, os.W_OK)):
        remedy = "export NUMBA_CACHE_DIR=a folder that every rank may write to"
        return Finding("kernels", f"{text}, in each process: {folder} cannot be written to", "advice", remedy)
    return Finding("kernels", f"{text}; what is compiled is kept in {folder}")


def make_steps(algorithm: str) -> None:
    name, options = spelled(algorithm)

    def rank(comm: Any) -> None:
        draw = np.random.default_rng(comm.rank)
        moments = (None, 0.999) if can_carry(name, options) else (None,)  # without, and with Adam's beta
        for size, moment in product(SIZES, moments):
            reducer = SparseAllreduce(size, density=0.01, comm=comm, algorithm=name, second_moment=moment, **options)
            for _ in range(2):
                reducer.step(draw.standard_normal(size, np.float32))

    World(2).run(rank)
