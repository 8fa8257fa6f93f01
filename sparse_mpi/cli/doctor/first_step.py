"""The seconds that first steps spend on their kernels, and whether the next process finds them compiled."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from time import perf_counter

import numpy as np

from sparse_mpi.cli.doctor.findings import MOST_NAMED, Finding
from sparse_mpi.cli.progress import progress
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import can_carry, spelled

SIZES = (3_000, 1 << 16, (1 << 20) + (1 << 14))  # for a sort, for a threshold from a sample, and from a histogram
RANKS = (2, 3)  # pairs are merged by kernels of their own
DEFAULTS = ("oktopk", "elect")  # the algorithms of `SparseAllreduce` and of `DistributedOptimizer`
OPTIMIZERS = {"SGD": {"momentum": 0.9, "weight_decay": 0.1}, "AdamW": {}}  # of torch, with arguments beside the rate


def first_step(
    versions: Mapping[str, str], algorithms: Sequence[str] = DEFAULTS, optimizers: Iterable[str] = ()
) -> Finding:
    """Make first steps, for which Numba compiles the kernels missing in its cache, and stores them there."""
    if "numba" not in versions:
        remedy = "install the extra cpu (numba): selection on the CPU takes a fraction of the time with it"
        return Finding("kernels", "NumPy's; nothing to compile", "advice", remedy)
    start = perf_counter()
    try:
        from sparse_mpi.kernels.cpu.passes import append  # raises where a step would work without Numba

        steps = {name: partial(make_steps, name) for name in algorithms}
        steps |= {name: partial(train_steps, name) for name in optimizers if "torch" in versions}
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


def train_steps(optimizer: str) -> None:
    import torch

    import sparse_mpi  # as a program does

    def rank(comm: object) -> None:
        model = torch.nn.Linear(SIZES[-1] >> 8, 1 << 8)
        plain = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **OPTIMIZERS[optimizer])
        distributed = sparse_mpi.optim.DistributedOptimizer(plain, model.named_parameters(), comm=comm)
        for _ in range(2):
            distributed.zero_grad()
            model(torch.randn(2, SIZES[-1] >> 8)).square().mean().backward()
            distributed.step()

    logging.disable(logging.INFO)  # what training says of momentum is not about this installation
    try:
        World(2).run(rank)
    finally:
        logging.disable(logging.NOTSET)
