"""First steps' seconds for their kernels, and whether the next process finds them compiled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from time import perf_counter

import numpy as np

from sparse_mpi.cli.doctor.findings import MOST_NAMED, Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs
from sparse_mpi.cli.launch.find import call, reason
from sparse_mpi.cli.progress import progress
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import can_carry, spelled

SIZES = (3_000, 1 << 16, (1 << 20) + (1 << 14))  # for a sort, for a threshold from a sample, and from a histogram
RANKS = (2, 3)  # pairs are merged by kernels of their own
DEFAULTS = ("oktopk", "elect")  # the algorithms of `SparseAllreduce` and of `DistributedOptimizer`
OPTIMIZERS = ("SGD", "AdamW")  # names in torch.optim
PROGRAM = """
import logging, sys, torch
from sparse_mpi import World
from sparse_mpi.optim import DistributedOptimizer

def rank(comm):
    model = torch.nn.Linear(1 << 12, 1 << 8)
    own = {"SGD": {"momentum": 0.9, "weight_decay": 0.1}}.get(sys.argv[1], {})
    plain = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=1e-3, **own)
    optimizer = DistributedOptimizer(plain, model.named_parameters(), comm=comm)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 1 << 12)).square().mean().backward()
        optimizer.step()

logging.disable(logging.INFO)
World(2).run(rank)
"""
SECONDS = 300.0  # for the program


def first_step(
    versions: Mapping[str, str], algorithms: Sequence[str] = DEFAULTS, optimizers: Iterable[str] = ()
) -> Finding:
    """Make first steps, for which Numba compiles and stores the kernels missing in its cache."""
    if "numba" not in versions:
        remedy = "install the extra cpu (numba): selection on the CPU takes a fraction of the time with it"
        return Finding("kernels", "NumPy's; nothing to compile", "advice", remedy)
    start = perf_counter()
    try:
        from sparse_mpi.kernels.cpu.passes import append  # raises where a step would work without Numba

        steps = {name: partial(make_steps, name) for name in algorithms}
        steps |= {name: partial(_train_steps, name) for name in optimizers if "torch" in versions}
        for step in progress(steps.values(), "compiling"):
            step()
    except Exception as error:
        remedy = "uninstall numba, or install a version that fits NumPy's"
        return Finding("kernels", f"they cannot be compiled: {error!r}", "broken", remedy)
    made = ", ".join(steps) if len(steps) <= MOST_NAMED else f"{len(steps)} algorithms, formats, selectors, optimizers"
    text = f"first steps of {made}: {perf_counter() - start:.1f} s"
    folder = append.stats.cache_path
    if append.stats.cache_misses and not (folder and os.access(folder, os.W_OK)):
        remedy = "export NUMBA_CACHE_DIR=a folder that every rank may write to"
        return Finding("kernels", f"{text}, in each process: {folder} cannot be written to", "advice", remedy)
    return Finding("kernels", f"{text}; what is compiled is kept in {folder}")


def make_steps(algorithm: str) -> None:
    name, options = spelled(algorithm)

    def rank(comm: Comm) -> None:
        draw = np.random.default_rng(comm.rank)
        moments = (None, 0.999) if can_carry(name, options) else (None,)  # without, and with Adam's beta
        for size, moment in product(SIZES, moments):
            reducer = SparseAllreduce(size, density=0.01, comm=comm, algorithm=name, second_moment=moment, **options)
            for _ in range(2):
                reducer.step(draw.standard_normal(size, np.float32))

    for ranks in RANKS:
        World(ranks).run(rank)


def _train_steps(optimizer: str) -> None:
    """Run `PROGRAM` with an optimizer of torch, in a process of its own."""
    done = call([sys.executable, "-c", PROGRAM, optimizer], outside_of_jobs(os.environ), SECONDS)
    if done.returncode:
        raise RuntimeError(reason(done))
