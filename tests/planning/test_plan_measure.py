"""Measuring options and carrying plans out, on real ranks; fits of costs: exact on a straight line, never negative."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms.hybrid import Hybrid
from sparse_mpi.planning.base import Plan, PlannedPart, Profile, Tensor
from sparse_mpi.planning.measure import fit, measure
from sparse_mpi.planning.planners import PLANNERS, best
from sparse_mpi.planning.store import algorithm_of, digest, dumps, loads

TENSORS = (Tensor("a.weight", (30, 50), 0.03), Tensor("a.bias", (30,), 0.03), Tensor("b.weight", (4, 30), 0.01))
SIZE = sum(tensor.size for tensor in TENSORS)
PLAN = Plan(
    "by hand",
    tuple((tensor.name, tensor.shape) for tensor in TENSORS),
    3,
    0.1,
    (PlannedPart("oktopk", (0,), 150, 2), PlannedPart("dense", (1,), 30), PlannedPart("topka", (2,), 15)),
    0.1,
)


@pytest.mark.ranks(1, 3)
def test_every_rank_has_the_same_profile_and_so_the_same_plans(ranks):
    def body(comm):
        profile = measure(TENSORS, 0.05, comm, before=0.01, backward=0.03, update=0.002)
        assert isinstance(profile, Profile) and profile.tensors == TENSORS and profile.ranks == comm.size
        assert (profile.before, profile.backward, profile.update) == (0.01, 0.03, 0.002)
        assert loads(dumps(profile), kind=Profile) == profile
        planners = (best, *PLANNERS.values())
        return dumps(profile), [digest(planner(profile)) for planner in planners]

    seen = ranks.run(body)
    assert all(other == seen[0] for other in seen)


@pytest.mark.ranks(2)
def test_unknown_options_and_empty_tensors_are_refused(ranks):
    def body(comm):
        with pytest.raises(ValueError, match="tensors must have elements, got none.weight without any"):
            measure((*TENSORS, Tensor("none.weight", (0, 3))), 0.05, comm)
        with pytest.raises(ValueError, match="options must be among dense, .*, got fastest"):
            measure(TENSORS, 0.05, comm, options=("oktopk", "fastest"))

    ranks.run(body)


def test_a_plan_is_carried_out_as_it_says(ranks):
    """Its k exactly, every tensor by its algorithm, both laws."""
    algorithm = algorithm_of(PLAN)
    assert isinstance(algorithm, Hybrid) and [p.pieces for p in algorithm.parts] == [2, 1, 1]

    def body(comm):
        reducer = SparseAllreduce([t.shape for t in TENSORS], density=0.1, comm=comm, algorithm=algorithm)
        for step in range(3):
            gradient = np.random.default_rng([step, comm.rank]).standard_normal(SIZE, np.float32)
            reducer.step(gradient, check=True)
            assert reducer.report.selected == sum(part.k for part in PLAN.parts)

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.under_mpi(3)
def test_ranks_with_different_plans_do_not_start(ranks):
    def body(comm):
        other = replace(PLAN, parts=(PlannedPart("topka", (0, 1, 2), 165),))
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            plan = other if comm.rank == 1 else PLAN
            SparseAllreduce([t.shape for t in TENSORS], density=0.1, comm=comm, algorithm=algorithm_of(plan))

    ranks.run(body)


ELEMENTS, ENTRIES = (4096, 1_000_000, 1_000_000, 8_000_000), (40, 10_000, 2_500, 80_000)
coefficients = st.sampled_from([0.0, 1e-4, 1e-3]), st.sampled_from([0.0, 1e-10, 1e-8]), st.sampled_from([0.0, 1e-8])


@given(*coefficients)
def test_a_straight_line_is_found(fixed, per_element, per_entry):
    def line(n, k):
        return fixed + per_element * n + per_entry * k

    cost = fit(ELEMENTS, ENTRIES, [line(n, k) for n, k in zip(ELEMENTS, ENTRIES, strict=True)])
    for n, k in ((4096, 40), (500_000, 5_000), (8_000_000, 80_000), (14_700_000, 147_000)):
        assert cost.seconds(n, k) == pytest.approx(line(n, k), rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_whatever_was_measured_no_cost_is_negative(seconds):
    cost = fit(ELEMENTS, ENTRIES, seconds)
    assert all(math.isfinite(c) and c >= 0 for c in (cost.fixed, cost.per_element, cost.per_entry))
