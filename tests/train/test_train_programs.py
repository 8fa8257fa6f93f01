"""Every program trains, each with another algorithm, and ends in the same bits from its half-way checkpoint.

That every algorithm trains alike is shown by the conformance suite; that a job under MPI which is killed goes on to the
same bits, by `test_train_resume`.
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec

import pytest

from .program_jobs import ALGORITHM, NEEDS, PROGRAMS
from .small_program import outcomes

pytestmark = pytest.mark.usefixtures("no_signals")


SLOW = {"bert squad": [pytest.mark.full("takes 3 s; its pretraining is the same program, model and loop")]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, [])) for name in PROGRAMS])
def test_a_program_trains_and_is_resumed_to_the_same_bits(name, tmp_path):
    if not find_spec(NEEDS.get(name, "torch")):
        pytest.skip(f"needs {NEEDS[name]}")
    module, *options = PROGRAMS[name]
    options += ["--algo", ALGORITHM[name], "--tiny", "--batch-size", "4", "--max-steps", "4"]
    options += ["--check-every", "2", "--checkpoint-every", "2"]

    def trained(folder, *more):
        return outcomes(import_module(module).PROGRAM, 2, tmp_path / folder, *options, *more)[0]

    straight = trained("straight")
    resumed = trained("resumed", "--resume", tmp_path / "straight" / "checkpoints" / "step-00000002")
    assert straight.identical and resumed.identical and straight.steps == 4
    assert (resumed.digest, resumed.loss, resumed.score) == (straight.digest, straight.loss, straight.score)
    assert math.isfinite(straight.loss) and math.isfinite(straight.score)
