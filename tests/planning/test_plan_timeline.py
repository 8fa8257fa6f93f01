"""The seconds of a step: an example worked by hand, and the sum that holds for every profile."""

from __future__ import annotations

import pytest
from hypothesis import given

from sparse_mpi.planning.base import PlannedPart
from sparse_mpi.planning.planners import PLANNERS
from sparse_mpi.planning.timeline import load, step_seconds

from .profiles import profiles, worked

A, B = 1, 0  # numbers of the tensors of the worked example


def seconds(profile, *parts):
    return step_seconds(profile, [load(profile, part) for part in parts])


def test_one_part_is_reduced_after_the_other():
    """2 s before, 10 s backward, two reductions of 1 + 2 + 1 s, 1 s of update; dense takes 7.5 s for both."""
    assert seconds(worked(), PlannedPart("topka", (A,), 10), PlannedPart("topka", (B,), 5)) == 2 + 10 + 2 * 4 + 1
    assert seconds(worked(), PlannedPart("dense", (B, A), 150)) == 2 + 10 + 7.5 + 1


def test_fixed_costs_are_paid_for_every_piece():
    assert seconds(worked(), PlannedPart("topka", (B, A), 15, partitions=3)) == 2 + 10 + 3 * 4 + 1


@given(profile=profiles())
def test_a_step_is_as_long_as_all_that_it_does(profile):
    for planner in PLANNERS.values():
        expected = profile.before + profile.backward + profile.update
        for part in planner(profile).parts:
            option = profile.option(part.option)
            elements = sum(profile.tensors[number].size for number in part.tensors)
            expected += sum(phase.seconds(elements, part.k) for phase in (option.select, option.exchange, option.merge))
        assert planner(profile).predicted == pytest.approx(expected)
