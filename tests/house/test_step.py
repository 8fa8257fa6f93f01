"""A step can be read: how many files it enters, how many calls it makes, how long its chains of imports are."""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import sparse_mpi
from sparse_mpi import SparseAllreduce, World, kernels

from .test_layers import LIBRARY, PACKAGE, imports

HOME = f"{Path(sparse_mpi.__file__).parent}{os.sep}"  # what is below is the library's, whatever the folder of a clone
N, STEADY = 100_000, 38  # elements of a gradient; steps after which thresholds and regions are settled
LOOKS = 4  # steps after these that are counted
CHAIN = 20  # modules in the longest chain of imports from a reducer


def entered(ranks, make):
    """The calls of the library in one steady step on rank 0 of a World, by file, with NumPy's kernels.

    Of a few steps that with the fewest: a threshold that was not foreseen is searched for, as in some steps of Elect.
    """
    steps = [Counter() for _ in range(LOOKS)]

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(HOME):
            steps[0][path.removeprefix(HOME)] += 1

    def body(comm):
        step, random = make(comm), np.random.default_rng(comm.rank)
        for _ in range(STEADY):
            step(random)
        for _ in range(LOOKS):
            sys.setprofile(note if comm.rank == 0 else None)
            try:
                step(random)
            finally:
                sys.setprofile(None)
            if comm.rank == 0:
                steps.append(steps.pop(0))

    World(ranks).run(body)
    return min(steps, key=Counter.total)


def reducer(algorithm):
    def make(comm):
        made = SparseAllreduce(N, density=0.01, comm=comm, algorithm=algorithm)
        return lambda random: made.step(random.standard_normal(N, np.float32))

    return make


def optimizer(name, algorithm):
    def make(comm):
        torch = pytest.importorskip("torch")
        from sparse_mpi.optim import DistributedOptimizer

        weight = torch.nn.Parameter(torch.zeros(N))
        own = getattr(torch.optim, name)([weight], lr=0.1)
        made = DistributedOptimizer(own, density=0.01, comm=comm, algorithm=algorithm)

        def step(random):
            made.zero_grad()
            (weight * torch.from_numpy(random.standard_normal(N, np.float32))).sum().backward()
            made.step()

        return step

    return make


@pytest.mark.parametrize(
    ("size", "make", "files", "calls"),
    [
        pytest.param(4, reducer("oktopk"), 18, 186, id="oktopk"),
        pytest.param(4, reducer("elect"), 22, 347, id="elect"),
        # A door has parts that others have, too; where second moments travel, values are packed in two formats
        pytest.param(2, optimizer("SGD", "oktopk"), 33, 330, id="SGD"),
        pytest.param(2, optimizer("AdamW", "elect"), 47, 770, id="AdamW"),
    ],
)
def test_a_steady_step_enters_few_files_and_makes_few_calls(monkeypatch, size, make, files, calls):
    """Numba's compiled functions count as calls where it is installed, so that all count NumPy's kernels."""
    monkeypatch.setattr(kernels, "host", kernels._generic)
    found = entered(size, make)
    assert len(found) <= files and found.total() <= calls, dict(sorted(found.items()))


def test_chains_of_imports_are_short():
    graph = {
        name: [i.target for i in imports(name, file, LIBRARY) if i.target in LIBRARY and not i.inside]
        for name, file in LIBRARY.items()
    }

    @cache
    def chain(name):
        return max(([name, *chain(target)] for target in graph[name] if target != PACKAGE), key=len, default=[name])

    longest = chain(f"{PACKAGE}.reduction.reducer")
    assert len(longest) <= CHAIN, " > ".join(longest)
