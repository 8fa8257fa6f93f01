"""What the first commands load: `run` few of our modules, a training program neither faults nor emulated networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..launch import launch
from ..prefork import copied
from .test_size import KINDS

# Modules of ours that `run --help` loads; that importing a reducer loads, but for parts that a registry has
MOST, BY_REDUCER = 30, 53
HEAVY = {"mpi4py", "cupy", "torch", "numba", "rich", "transformers", "lightning"}  # not loaded by `import sparse_mpi`
LOADED = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr)); "


def modules_of(program: str, start: Callable[..., list[str]] = list) -> list[str]:
    """The modules that a program has loaded at its end."""
    done = launch(None, *start(["-c", LOADED + program]))
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
    return done.stderr.split()


def test_help_of_run_loads_few_modules():
    program = "import runpy; sys.argv = ['x', 'run', '--help']; runpy.run_module('sparse_mpi', run_name='__main__')"
    found = [name for name in modules_of(program) if name.split(".")[0].startswith("sparse_mpi")]
    assert "sparse_mpi.cli.run" in found and len(found) <= MOST, found
    assert not {"psutil", "mpi4py", "numba"} & set(found)


@pytest.mark.jobs
def test_help_of_a_training_program_loads_no_fault_injector():
    program = "import runpy; sys.argv = ['vgg.py', '--help']; runpy.run_path('train/vgg.py', run_name='__main__')"
    found = modules_of(f"sys.path.insert(0, 'train'); {program}", lambda words: copied(*words))
    assert "sparse_mpi.cli.values" in found
    assert [name for name in found if name.startswith(("sparse_mpi_bench.chaos", "sparse_mpi_bench.emulation"))] == []


def test_importing_a_reducer_brings_few_modules_along_and_the_package_nothing_heavy():
    code = "import sys, sparse_mpi; print(*sys.modules); from sparse_mpi import SparseAllreduce; print(*sys.modules)"
    done = launch(None, "-c", code)
    assert done.returncode == 0, done.stderr
    first, second = (set(line.split()) for line in done.stdout.splitlines())
    parts = tuple(f"sparse_mpi.{kind}." for kind in KINDS)
    ours = sorted(name for name in second if name.startswith("sparse_mpi") and not name.startswith(parts))
    assert not first & HEAVY and len(ours) <= BY_REDUCER, f"{len(ours)}: {' '.join(ours)}"
