"""Every program trains, each with another algorithm, and ends in the same bits from its half-way checkpoint.

That every algorithm trains alike is shown by the conformance suite and, in a training loop, by `test_train_local`; that
a job which is killed goes on to the same bits, by `test_train_resume`.
"""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest

from ..launch import needs_mpi
from .every_algorithm import STEPS
from .program_jobs import ALGORITHM, NEEDS, PROGRAMS, trained

pytestmark = [needs_mpi, pytest.mark.jobs, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[str, dict]:
    """The record of each program; all are trained in one start of mpiexec."""
    asked = {name: [ALGORITHM[name]] for name in PROGRAMS if find_spec(NEEDS.get(name, "torch"))}
    return {record["program"]: record for record in trained(asked, tmp_path_factory.mktemp("first"), ranks=2)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_and_is_resumed_to_the_same_bits(name, records):
    if name not in records:
        pytest.skip(f"needs {NEEDS[name]}")
    record = records[name]
    assert record["algorithm"] == ALGORITHM[name]
    assert record["resumed"] is True and record["identical"] is True and record["steps"] == STEPS, record
    assert math.isfinite(record["loss"]) and math.isfinite(record["score"]), record
