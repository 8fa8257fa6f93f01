"""Measuring ways to reduce a gradient and carrying plans out, on real ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.planning import measure as measuring
from sparse_mpi.planning.base import Plan, PlannedPart
from sparse_mpi.planning.measure import OPTIONS, measure
from sparse_mpi.planning.store import algorithm_of, dumps, loads

TENSORS = {"a.weight": (30, 50), "a.bias": (30,), "b.weight": (4, 30)}
SIZE = 1650
PARTS = PlannedPart("oktopk", (0,), 150 / 165), PlannedPart("dense", (1,)), PlannedPart("topka:wire=packed", (2,), 0.1)
PLAN = Plan(TENSORS, 3, 0.1, "by hand", PARTS, {"dense": 0.1})


@pytest.mark.ranks(1, 3)
def test_every_rank_has_the_same_plan(ranks):
    def body(comm):
        plan = measure(TENSORS.items(), 0.05, comm)
        assert plan.tensors == TENSORS and (plan.ranks, plan.density) == (comm.size, 0.05)
        assert {*plan.seconds} == {*OPTIONS, "partial"} and min(plan.seconds.values()) > 0
        assert loads(dumps(plan)) == plan
        return dumps(plan)

    seen = ranks.run(body)
    assert all(other == seen[0] for other in seen)


@pytest.mark.parametrize(
    ("seconds", "way"),
    [
        ({"dense": 1.04, "topka": 1.0, "gtopk": 2.0, "partial": 1.1}, "dense"),
        ({"dense": 1.06, "topka": 1.0, "gtopk": 2.0, "partial": 1.1}, "topka"),
        ({"dense": 2.0, "topka": 1.0, "gtopk": 1.1, "partial": 0.9}, "partial"),
    ],
)
def test_the_fastest_way_is_planned_if_it_gains_over_dense(seconds, way, monkeypatch):
    """Half of k goes dense at most: of k = 11 entries 1 and 3, for the 6 more do not fit."""
    monkeypatch.setattr(measuring, "_trial", lambda plan, *_, **__: seconds[plan.way])
    tensors = {f"t{size}": (size,) for size in (3, 80, 1, 20, 6)}
    (plan,) = World(1).run(lambda comm: measure(tensors.items(), 0.1, comm, options=("topka", "gtopk")))
    assert plan.way == way and plan.seconds == seconds
    if way == "partial":
        assert plan.parts == (PlannedPart("dense", (0, 2)), PlannedPart("topka", (1, 3, 4), 7 / 11))
    else:
        assert plan.parts == (PlannedPart(way, (0, 1, 2, 3, 4)),)


@pytest.mark.ranks(2)
def test_unknown_options_and_empty_tensors_are_refused(ranks):
    def body(comm):
        with pytest.raises(ValueError, match="tensors must have elements, got none.weight without any"):
            measure([*TENSORS.items(), ("none.weight", (0, 3))], 0.05, comm)
        with pytest.raises(ValueError, match="fastest"):
            measure(TENSORS.items(), 0.05, comm, options=("oktopk", "fastest"))

    ranks.run(body)


def test_a_plan_is_carried_out_as_it_says(ranks):
    """Its k exactly, every tensor by its algorithm, both laws."""

    def body(comm):
        reducer = SparseAllreduce([*TENSORS.values()], density=0.1, comm=comm, algorithm=algorithm_of(PLAN))
        for step in range(3):
            gradient = np.random.default_rng([step, comm.rank]).standard_normal(SIZE, np.float32)
            reducer.step(gradient, check=True)
            assert reducer.report.selected == 150 + 30 + round(0.1 * 165)

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.under_mpi(3)
def test_ranks_with_different_plans_do_not_start(ranks):
    def body(comm):
        plan = replace(PLAN, parts=(PlannedPart("topka", (0, 1, 2)),)) if comm.rank == 1 else PLAN
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            SparseAllreduce([*TENSORS.values()], density=0.1, comm=comm, algorithm=algorithm_of(plan))

    ranks.run(body)
