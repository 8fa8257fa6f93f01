"""The planners: never worse than doing nothing clever, next to what brute force finds, and the budgets they keep."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from sparse_mpi.planning.base import Option, PhaseCost, Tensor
from sparse_mpi.planning.planners import PLANNERS, Forecast, best, explain
from sparse_mpi.planning.timeline import load, step_seconds

from .profiles import FREE, profiles, worked

ROUNDING = 1 + 1e-9


def groupings(tensors):
    """Yield all ways to group the numbers below ``tensors``, with the last one in each group of the others or alone."""
    if tensors == 0:
        yield []
        return
    for groups in groupings(tensors - 1):
        for i, group in enumerate(groups):
            yield [*groups[:i], [*group, tensors - 1], *groups[i + 1 :]]
        yield [*groups, [tensors - 1]]


def brute(profile):
    """The oracle: the best of all ways to fuse the tensors, with all options for every part."""
    forecast = Forecast(profile)
    candidates = (
        [forecast.part(group, choice) for group, choice in zip(groups, chosen, strict=True)]
        for groups in groupings(len(profile.tensors))
        for chosen in product(forecast.choices, repeat=len(groups))
    )
    return forecast.plan("brute", min(candidates, key=forecast.step))


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=15)
@given(profile=profiles(most_tensors=8))
def test_a_plan_has_every_tensor_once_and_the_step_it_says(profile, name):
    plan = PLANNERS[name](profile)
    assert sorted(number for part in plan.parts for number in part.tensors) == list(range(len(profile.tensors)))
    for part in plan.parts:
        elements = sum(profile.tensors[number].size for number in part.tensors)
        assert 1 <= part.partitions <= part.k <= elements
        assert list(part.tensors) == sorted(part.tensors)
        if profile.option(part.option).dense:
            assert part.k == elements
    assert plan.predicted == pytest.approx(step_seconds(profile, [load(profile, part) for part in plan.parts]))
    assert (plan.planner, plan.ranks, plan.density) == (name, profile.ranks, profile.density)
    assert plan == PLANNERS[name](profile)


@settings(max_examples=10)
@given(profile=profiles())
def test_never_worse_than_all_dense_or_all_sparse(profile):
    steps = {name: PLANNERS[name](profile).predicted for name in PLANNERS}
    assert steps["partial"] <= steps["sparse"] * ROUNDING
    assert steps["greedy"] <= min(steps.values()) * ROUNDING
    assert best(profile).predicted <= min(steps.values()) * ROUNDING


@pytest.mark.thin(0)
@pytest.mark.parametrize("tensors", [3, 4, 6])
def test_greedy_is_within_a_tenth_of_brute_force(tensors):
    @settings(max_examples=20)
    @given(profile=profiles(most_tensors=tensors, fewest_tensors=tensors))
    def compare(profile):
        assert PLANNERS["greedy"](profile).predicted <= 1.1 * brute(profile).predicted

    compare()


@settings(max_examples=50)
@given(profile=profiles())
def test_partial_sends_k_entries_exactly(profile):
    plan = PLANNERS["partial"](profile)
    assert sum(part.k for part in plan.parts) == profile.k
    dense = [profile.tensors[i].size for p in plan.parts if profile.option(p.option).dense for i in p.tensors]
    sparse = [profile.tensors[i].size for p in plan.parts if not profile.option(p.option).dense for i in p.tensors]
    assert not dense or not sparse or max(dense) < min(sparse)


@settings(max_examples=20)
@given(profile=profiles(most_tensors=8))
def test_where_dense_is_faster_the_answer_is_dense(profile):
    """An algorithm that takes longer than dense in every phase, whatever the size."""
    dense = profile.option("dense")
    worse = Option(
        "topka", False, PhaseCost(fixed=0.1), PhaseCost(dense.exchange.fixed + 60), PhaseCost(dense.merge.fixed + 6)
    )
    profile = replace(profile, options=(dense, worse))
    plan = best(profile)
    assert plan.planner == "dense" and [part.option for part in plan.parts] == ["dense"]
    assert explain(profile, plan).startswith("leave it dense")


def test_partial_leaves_dense_what_fits_into_the_budget():
    """Pairs cost ten times as much as dense elements, so all that fits into half of k goes dense: 1 + 3, not 6 more."""
    tensors = tuple(Tensor(f"t{size}", (size,)) for size in (3, 80, 1, 20, 6))
    options = (
        Option("dense", True, FREE, PhaseCost(per_element=1), FREE),
        Option("topka", False, FREE, PhaseCost(per_entry=10), FREE),
    )
    plan = PLANNERS["partial"](worked(tensors=tensors, options=options, density=0.1))
    assert {part.option: (part.tensors, part.k) for part in plan.parts} == {
        "dense": ((0, 2), 4),
        "topka": ((1, 3, 4), 7),
    }
    assert "at density 0.066; the others stay dense" in explain(worked(tensors=tensors, options=options), plan)


@pytest.mark.parametrize("kept", [slice(0, 1), slice(1, 2), slice(0, 0)])
def test_a_profile_needs_dense_and_something_sparse(kept):
    with pytest.raises(ValueError, match="profile must have the option dense and a sparse one, got (dense|topka|none)"):
        best(worked(options=worked().options[kept]))


def test_explanations_compare_with_all_dense_and_all_sparse():
    says = explain(worked(), best(worked()))
    assert says.startswith("sparse: topka for 2 of 2 tensors, 100 % of the elements. ")
    assert "17 s, all dense 20.5 s (1.21 times as long), all sparse by topka 17 s (1.00 times)" in says
    half = replace(worked().options[0], name="two_level", exchange=PhaseCost(per_element=0.02))
    quick = worked(options=(*worked().options, half))
    assert explain(quick, best(quick)).startswith("leave it dense, but by two_level in 1 piece. ")
    slow = worked(options=(worked().options[0], Option("topka", False, PhaseCost(fixed=30), FREE, FREE)))
    forced = PLANNERS["sparse"](slow)
    assert explain(slow, forced).startswith("leave it dense: a step is predicted to take 20.5 s so, this plan 43 s")
