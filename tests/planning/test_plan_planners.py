"""The planners: never worse than doing nothing clever, next to what brute force finds, and the budgets they keep."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from sparse_mpi.planning.base import Option, PhaseCost, Tensor
from sparse_mpi.planning.planners import PARTITIONS, PLANNERS, Forecast, best, explain
from sparse_mpi.planning.timeline import simulate

from .profiles import FREE, MODES, profiles, worked

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


def brute(profile, overlap=False, cpu_lane=False, partitions=PARTITIONS):
    """The oracle: the best of all ways to fuse the tensors, with all strategies for every part."""
    forecast = Forecast(profile, overlap, cpu_lane)
    choices = [choice for choice in forecast.choices if choice.partitions in partitions]
    candidates = (
        [forecast.part(group, choice) for group, choice in zip(groups, chosen, strict=True)]
        for groups in groupings(len(profile.tensors))
        for chosen in product(choices, repeat=len(groups))
    )
    return forecast.plan("brute", min(candidates, key=forecast.step))


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES)
@settings(max_examples=15)
@given(profile=profiles(most_tensors=8))
def test_a_plan_has_every_tensor_once_and_the_step_it_says(profile, overlap, cpu_lane, name):
    plan = PLANNERS[name](profile, overlap, cpu_lane)
    assert sorted(number for part in plan.parts for number in part.tensors) == list(range(len(profile.tensors)))
    for part in plan.parts:
        elements = sum(profile.tensors[number].size for number in part.tensors)
        assert 1 <= part.partitions <= part.k <= elements
        assert list(part.tensors) == sorted(part.tensors)
        if profile.option(part.option).dense:
            assert part.k == elements
    assert plan.predicted == pytest.approx(simulate(profile, plan.parts, overlap, cpu_lane).step)
    assert (plan.planner, plan.ranks, plan.density) == (name, profile.ranks, profile.density)
    assert plan == PLANNERS[name](profile, overlap, cpu_lane)


@pytest.mark.thin(0, overlap=(True,), cpu_lane=(True,))
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES)
@settings(max_examples=10)
@given(profile=profiles())
def test_never_worse_than_all_dense_or_all_sparse(profile, overlap, cpu_lane):
    steps = {name: PLANNERS[name](profile, overlap, cpu_lane).predicted for name in PLANNERS}
    assert steps["partial"] <= steps["sparse"] * ROUNDING
    assert steps["greedy"] <= min(steps.values()) * ROUNDING
    assert best(profile, overlap, cpu_lane).predicted <= min(steps.values()) * ROUNDING


@pytest.mark.thin(0)
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES[1:])
@pytest.mark.parametrize(("tensors", "partitions"), [(3, (1, 2, 4, 8)), (4, (1, 2)), (6, (1,))])
def test_greedy_is_within_a_tenth_of_brute_force(overlap, cpu_lane, tensors, partitions):
    @settings(max_examples=20)
    @given(profile=profiles(most_tensors=tensors, fewest_tensors=tensors))
    def compare(profile):
        least = brute(profile, overlap, cpu_lane, partitions).predicted
        assert PLANNERS["greedy"](profile, overlap, cpu_lane).predicted <= 1.1 * least

    compare()


@pytest.mark.thin(0, overlap=(True,), cpu_lane=(True,))
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES)
@settings(max_examples=50)
@given(profile=profiles())
def test_partial_sends_k_entries_exactly(profile, overlap, cpu_lane):
    plan = PLANNERS["partial"](profile, overlap, cpu_lane)
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
    for overlap, cpu_lane in MODES:
        plan = best(profile, overlap, cpu_lane)
        assert {part.option for part in plan.parts} == {"dense"}
        assert explain(profile, plan).startswith("leave it dense")
        if not overlap:
            assert plan.planner == "dense" and len(plan.parts) == 1


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
    buckets = best(worked(), overlap=True)
    assert explain(worked(), buckets).startswith("leave it dense, but by dense in 2 pieces.")
    slow = worked(options=(worked().options[0], Option("topka", False, PhaseCost(fixed=30), FREE, FREE)))
    forced = PLANNERS["sparse"](slow)
    assert explain(slow, forced).startswith("leave it dense: a step is predicted to take 20.5 s so, this plan 43 s")
