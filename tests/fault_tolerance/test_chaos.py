"""Real jobs that lose ranks: a small number of what `python -m tests.fault_tolerance.chaos` does."""

from __future__ import annotations

import random

import pytest

from ..launch import needs_mpi
from .chaos import draw, lose

pytestmark = [needs_mpi, pytest.mark.jobs, pytest.mark.usefixtures("survival")]
DRAWN = random.Random(14)
BASE = {"ranks": 3, "spares": 0, "kind": "reducer", "algorithm": "oktopk"}
JOBS = [BASE | {"spares": 1, "faults": ["kill"], "victims": [0], "after": [0.1]}]
LOST = {"faults": ["stop", "disk", "exit"], "victims": [1, 0, 2], "after": [0.1, 0.05, 0.1]}
JOBS += [BASE | {"ranks": 4, "kind": "program"} | LOST]
FULL = [pytest.mark.full("as the others"), pytest.mark.full("as the other dozen")]
MORE = [pytest.param(draw(DRAWN), marks=FULL[: 1 + (number >= 12)]) for number in range(47)]


@pytest.mark.parametrize("job", [*JOBS, *MORE], ids=str)
def test_survivors_of_a_real_job_are_those_of_a_planned_departure(job):
    result = lose(job)
    assert result["problem"] is None, str(result)
