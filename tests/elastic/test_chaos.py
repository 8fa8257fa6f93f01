"""Real jobs that lose ranks: a small number of what `python -m tests.elastic.chaos` does."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from ..launch import ROOT, launch, needs_mpi
from .chaos import draw, lose

pytestmark = [needs_mpi, pytest.mark.jobs]
DRAWN = random.Random(14)
JOBS = [{"ranks": 4, "kind": "reducer", "algorithm": "oktopk", "fault": "kill", "victims": [0], "after": [0.1]}]
JOBS += [{"ranks": 3, "kind": "optimizer", "algorithm": "elect", "fault": "exit", "victims": [2], "after": [0.05]}]
PROGRAM = """
from sparse_mpi.elastic import ElasticAllreduce
try:
    ElasticAllreduce(100, k=9)
except ValueError as error:
    print(str(error)[:31])
"""
MORE = [draw(DRAWN, victims=1) for _ in range(6)]


@pytest.fixture(scope="module", autouse=True)
def survival():
    """Skip where MPI has no such thing."""
    command = (sys.executable, "-m", "sparse_mpi", "run", "--elastic", "--dry-run", "-n", "2", __file__)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert "--elastic needs an MPI whose ranks survive" in done.stderr
        pytest.skip(done.stderr.strip())


@pytest.mark.parametrize(
    "job", [*JOBS, *(pytest.param(job, marks=pytest.mark.full("as the others")) for job in MORE)], ids=str
)
def test_survivors_of_a_real_job_are_those_of_a_planned_departure(job):
    result = lose(job)
    assert result["problem"] is None, str(result)


def test_ranks_that_cannot_survive_are_told_so():
    done = launch(2, "-c", PROGRAM)
    assert done.stdout.splitlines() == ["comm must be one that survives "] * 2
