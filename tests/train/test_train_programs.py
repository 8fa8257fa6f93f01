"""Every program trains, each with another algorithm, and ends in the same bits from its half-way checkpoint.

That every algorithm trains alike is shown by the conformance suite and, in a training loop, by `test_train_local`; that
a job under MPI which is killed goes on to the same bits, by `test_train_resume`.
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from importlib.util import find_spec

import pytest

from sparse_mpi import World

from .every_algorithm import STEPS, train
from .program_jobs import ALGORITHM, NEEDS, PROGRAMS

pytestmark = pytest.mark.usefixtures("no_signals")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_and_is_resumed_to_the_same_bits(name, tmp_path):
    if not find_spec(NEEDS.get(name, "torch")):
        pytest.skip(f"needs {NEEDS[name]}")
    program, *options = PROGRAMS[name]
    World(2).run(
        lambda comm: train(
            Namespace(folder=tmp_path, jobs=[(ALGORITHM[name], program, [*options, "--batch-size", "4"])]), comm
        )
    )
    (record,) = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert record["algorithm"] == ALGORITHM[name]
    assert record["resumed"] is True and record["identical"] is True and record["steps"] == STEPS, record
    assert math.isfinite(record["loss"]) and math.isfinite(record["score"]), record
