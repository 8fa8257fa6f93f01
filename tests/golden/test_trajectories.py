"""Every trajectory is as it was, byte for byte; on another processor than recorded it, to rounding."""

from __future__ import annotations

import json

import pytest

from .trajectories import CASES, RECORD, SHARDED, WIDE, machine

KNOWN = json.loads(RECORD.read_text())
FULL = pytest.mark.full("another trajectory has the same parts")
ITEMS = [pytest.param(name, marks=[pytest.mark.jobs] * (name in SHARDED) + [FULL] * (name in WIDE)) for name in CASES]


@pytest.mark.parametrize("name", ITEMS)
def test_a_trajectory_is_as_recorded(name):
    found, known = CASES[name](), KNOWN["cases"][name]
    if machine() == KNOWN["elsewhere"].get(name, KNOWN["machine"]):
        assert [rank["sha256"] for rank in found] == [rank["sha256"] for rank in known]
    for mine, recorded in zip(found, known, strict=True):
        assert mine["sums"] == pytest.approx(recorded["sums"], rel=1e-4, abs=1e-3)


def test_every_case_is_recorded():
    """`tests.record` does it."""
    assert set(KNOWN["cases"]) == set(CASES)
