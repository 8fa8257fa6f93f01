"""Real jobs that lose ranks: a small number of what `python -m tests.fault_tolerance.chaos` does."""

from __future__ import annotations

import random

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied
from .chaos import draw, facts_in, lose

pytestmark = [needs_mpi, pytest.mark.jobs, pytest.mark.usefixtures("survival")]
DRAWN = random.Random(14)
BASE = {"ranks": 3, "spares": 0, "kind": "reducer", "algorithm": "oktopk"}
JOBS = [BASE | {"spares": 1, "faults": ["kill"], "victims": [0], "after": [0.1]}]
LOST = {"faults": ["stop", "disk", "exit"], "victims": [1, 0, 2], "after": [0.1, 0.05, 0.1]}
JOBS += [BASE | {"ranks": 4, "kind": "program"} | LOST]
PROGRAM = """
from sparse_mpi.fault_tolerance import ElasticAllreduce
try:
    ElasticAllreduce(100, k=9)
except ValueError as error:
    print(str(error)[:31])
"""
FULL = [pytest.mark.full("as the others"), pytest.mark.full("as the other dozen")]
MORE = [pytest.param(draw(DRAWN), marks=FULL[: 1 + (number >= 12)]) for number in range(47)]


@pytest.mark.parametrize("job", [*JOBS, *MORE], ids=str)
def test_survivors_of_a_real_job_are_those_of_a_planned_departure(job):
    result = lose(job)
    assert result["problem"] is None, str(result)


def test_ranks_that_cannot_survive_are_told_so():
    done = launch(2, *copied("-c", PROGRAM))
    assert done.stdout.splitlines() == ["comm must be one that survives "] * 2


def test_facts_of_several_ranks_are_read_from_one_line():
    said = 'sparse_mpi: rank 1 lost{"rank": 0, "spent": []}{"rank": 2}\n{"rank": 3}and {"rank": cut\n{"rank": 4}'
    assert facts_in(said) == [{"rank": 0, "spent": []}, {"rank": 2}, {"rank": 3}, {"rank": 4}]


ALL_FAIL = """
import sys
import numpy as np
from sparse_mpi.fault_tolerance import ElasticAllreduce
reducer = ElasticAllreduce(100, k=9)
for step in range(4):
    if step == 2 and (sys.argv[1] == "all" or reducer.team.number == 1):
        raise ValueError("for the test")
    reducer.step(np.ones(100, np.float32))
print("done", reducer.ranks)
sys.exit(0 if sys.argv[1] == "all" else 5)
"""


@pytest.mark.parametrize(
    ("who", "status", "ended"),
    [("all", 1, 0), pytest.param("one", 5, 2, marks=pytest.mark.full("test_status loses one rank like this"))],
)
def test_an_exception_is_the_loss_of_that_rank_and_of_the_job_if_all_have_it(tmp_path, who, status, ended):
    program = tmp_path / "program.py"
    program.write_text(ALL_FAIL)
    done = launch(None, "-m", "sparse_mpi", "run", "--elastic", "-n", "3", *copied(str(program), who))
    assert done.returncode == status and done.stdout.splitlines() == ["done 2"] * ended
    assert done.stderr.count("ValueError: for the test") >= (3 if who == "all" else 1)
