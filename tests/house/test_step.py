"""A step can be read: how many files it enters, how many calls it makes, and what importing a reducer brings along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import sparse_mpi
from sparse_mpi import SparseAllreduce, World, kernels

from .test_layers import LIBRARY, PACKAGE, ROOT, imports
from .test_size import KINDS

HOME = f"{Path(sparse_mpi.__file__).parent}{os.sep}"  # what is below is the library's, whatever the folder of a clone
N, STEADY = 100_000, 38  # elements of a gradient; steps after which thresholds and regions are settled
LOOKS = 4  # steps after these that are counted
# Modules that importing a reducer brings along, but for parts that a registry has; the longest chain of imports from it
MODULES, CHAIN = 53, 20


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


def optimizer(comm):
    torch = pytest.importorskip("torch")
    from sparse_mpi.optim import DistributedOptimizer

    weight = torch.nn.Parameter(torch.zeros(N))
    made = DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), density=0.01, comm=comm, algorithm="oktopk")

    def step(random):
        made.zero_grad()
        (weight * torch.from_numpy(random.standard_normal(N, np.float32))).sum().backward()
        made.step()

    return step


@pytest.mark.parametrize(
    ("size", "make", "files", "calls"),
    [
        pytest.param(4, reducer("oktopk"), 18, 186, id="oktopk"),
        pytest.param(4, reducer("elect"), 22, 347, id="elect"),
        pytest.param(2, optimizer, 25, 300, id="optimizer"),
    ],
)
def test_a_steady_step_enters_few_files_and_makes_few_calls(monkeypatch, size, make, files, calls):
    """Numba's compiled functions count as calls where it is installed, so that all count NumPy's kernels."""
    monkeypatch.setattr(kernels, "host", kernels._generic)
    found = entered(size, make)
    assert len(found) <= files and found.total() <= calls, dict(sorted(found.items()))


def test_importing_a_reducer_brings_few_modules_along():
    code = f"import sys; from {PACKAGE} import SparseAllreduce; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    parts = tuple(f"{PACKAGE}.{kind}." for kind in KINDS)
    modules = sorted(name for name in done.stdout.split() if name.startswith(PACKAGE) and not name.startswith(parts))
    assert len(modules) <= MODULES, f"{len(modules)}: {' '.join(modules)}"


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
