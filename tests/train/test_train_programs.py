"""Every program trains, each with another algorithm, and ends in the same bits from its half-way checkpoint.

That every algorithm trains alike is shown by the conformance suite; that a job under MPI which is killed goes on to the
same bits, by `test_train_resume`.
"""

from __future__ import annotations

import math

import pytest

from sparse_mpi import World

from .every_algorithm import OPTIONS, STEPS, trained_twice
from .program_jobs import ALGORITHM, PROGRAMS, program_of

pytestmark = pytest.mark.usefixtures("no_signals")


SLOW = {"bert squad": [pytest.mark.full("takes 3 s; its pretraining is the same program, model and loop")]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, [])) for name in PROGRAMS])
def test_a_program_trains_and_is_resumed_to_the_same_bits(name, tmp_path):
    program, options = program_of(name)
    options += [*OPTIONS, "--algo", ALGORITHM[name]]
    (record, _) = World(2).run(lambda comm: trained_twice(program, options, tmp_path, comm))
    assert record["identical"] and record["resumed"] and record["steps"] == STEPS
    assert math.isfinite(record["loss"]) and math.isfinite(record["score"])


def test_a_program_trains_by_an_algorithm_selector_and_format_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(
        "from sparse_mpi.algorithms import TopkA\nfrom sparse_mpi.select import Exact\n"
        "from sparse_mpi.wire import BFloat16, BitPacked\n"
        "class Mine(TopkA): pass\nclass Largest(Exact): pass\nHALF = BitPacked(BFloat16())\n"
    )
    monkeypatch.chdir(tmp_path)
    program, options = program_of("vgg")
    options += [*OPTIONS, "--algo", "of_mine:Mine", "--selector", "of_mine:Largest", "--wire", "of_mine:HALF"]
    (record, _) = World(2).run(lambda comm: trained_twice(program, options, tmp_path / "run", comm))
    assert record["identical"] and record["resumed"] and record["steps"] == STEPS
