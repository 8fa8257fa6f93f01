"""Plan and profile files: what is written is read again, and what was altered or is for another job is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from sparse_mpi.planning import store
from sparse_mpi.planning.base import PlannedPart, Tensor
from sparse_mpi.planning.planners import best
from sparse_mpi.predict.models import MODELS

from .profiles import profiles, worked

PROFILE = worked()
PLAN = replace(best(PROFILE), parts=(PlannedPart("dense", (1,), 100), PlannedPart("topka", (0,), 5, 2)))


@settings(max_examples=30)
@given(profile=profiles())
def test_what_is_written_is_read(profile):
    plan = best(profile)
    assert store.loads(store.dumps(plan)) == plan and store.loads(store.dumps(profile), kind=store.Profile) == profile
    assert store.dumps(store.loads(store.dumps(plan))) == store.dumps(plan)


def test_files_are_for_people_too(tmp_path):
    store.save(PLAN, tmp_path / "plan.json")
    store.save(PROFILE, tmp_path / "profile.json")
    assert (
        store.load(tmp_path / "plan.json") == PLAN and store.load(tmp_path / "profile.json", store.Profile) == PROFILE
    )
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert '   {"option": "topka", "tensors": [0], "k": 5, "partitions": 2}' in "\n".join(lines)
    assert max(map(len, lines)) <= 120 and json.loads("\n".join(lines))["hash"] == store.digest(PLAN)


def edited(value, *keys):
    """A plan file in which the value at these keys is another one; None: none."""
    data = inside = json.loads(store.dumps(PLAN))
    for key in keys[:-1]:
        inside = inside[key]
    inside[keys[-1]] = value
    if value is None:
        del inside[keys[-1]]
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "p.json must be JSON, but"),
        ("[1]", "p.json must be a sparse_mpi plan, but is none"),
        (store.dumps(PROFILE), "p.json must be a sparse_mpi plan, but is none"),
        (edited(2, "version"), "p.json has format 2, newer than 1, .* update sparse_mpi"),
        (edited("1", "version"), "p.json has format '1', which is none; make it anew"),
        (edited(None, "hash"), "p.json lacks hash; make it anew"),
        (edited(None, "plan", "ranks"), "p.json: plan lacks ranks; make it anew"),
        (edited(None, "plan", "parts", 1, "k"), r"p.json: plan.parts\[1\] lacks k"),
        (edited(1, "plan", "colour"), "p.json: plan has unknown colour"),
        (edited(2.5, "plan", "parts", 1, "k"), r"p.json: plan.parts\[1\].k must be a whole number, got 2.5"),
        (edited(True, "plan", "ranks"), "p.json: plan.ranks must be a whole number, got true"),
        (edited("a", "plan", "density"), 'p.json: plan.density must be a number, got "a"'),
        (edited(float("nan"), "plan", "density"), "p.json: plan.density must be finite, got nan"),
        (edited([1], "plan", "tensors", 0), r"p.json: plan.tensors\[0\] must have 2 items, got 1"),
        (edited({}, "plan", "parts"), "p.json: plan.parts must be a list, got {}"),
        (edited(4, "plan", "parts", 1, "k"), "p.json was altered: .* make it anew"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        store.loads(text, "p.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parts": PLAN.parts[:1]}, "every tensor must be in one part, but b is in none"),
        ({"parts": (*PLAN.parts, PlannedPart("dense", (1,), 100))}, "every tensor must be in one part, but a is in 2"),
        ({"parts": (*PLAN.parts, PlannedPart("dense", (2,), 1))}, "tensor 2 is in a part, but there are only 2"),
        ({"parts": (PlannedPart("best", (0, 1), 5),)}, "part 0: algorithm must be one of dense, .*, got best"),
        (
            {"parts": (PlannedPart("topka", (1, 0), 5),)},
            r"part 0: tensors must be some, in ascending order, got \[1, 0\]",
        ),
        (
            {"parts": (*PLAN.parts, PlannedPart("dense", (), 1))},
            r"part 2: tensors must be some, in ascending order, got \[\]",
        ),
        (
            {"parts": (PlannedPart("topka", (0, 1), 0),)},
            r"part 0: k must be in \[1, 150\], the number of its elements, got 0",
        ),
        ({"parts": (PlannedPart("topka", (0, 1), 151),)}, r"part 0: k must be in \[1, 150\]"),
        ({"parts": (PlannedPart("topka", (0, 1), 5, 6),)}, r"part 0: partitions must be in \[1, 5\], its k, got 6"),
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"density": 1.5}, r"ranks must be .* density in \(0, 1\], got 4 and 1.5"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, says, tmp_path):
    store.save(replace(PLAN, **changes), tmp_path / "p.json")
    with pytest.raises(ValueError, match=f"p.json: {says}.*; make it anew"):
        store.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensors": ()}, "there must be a tensor"),
        ({"tensors": (Tensor("a", (3, 0)),)}, r"a must have elements, got the shape \[3, 0\]"),
        ({"tensors": (Tensor("a", (3,), -1.0),)}, "times and costs must not be negative, got -1"),
        ({"backward": -2.0}, "times and costs must not be negative, got -2"),
        ({"ranks": 0}, "ranks must be at least 1"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(changes, says):
    with pytest.raises(ValueError, match=f"p.json: {says}.*; measure it anew"):
        store.loads(store.dumps(replace(PROFILE, **changes)), "p.json", store.Profile)


def test_no_text_is_refused(tmp_path):
    (tmp_path / "p.json").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="p.json must be JSON, got a file that is no text"):
        store.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("tensors", "number", "says"),
    [
        ([("b", (5, 10)), ("a", (99,))], 4, "tensor 1 is a 100 in the plan and a 99 here; plan anew"),
        ([("c", (5, 10)), ("a", (99,))], 4, "tensor 0 is b 5x10 in the plan and c 5x10 here; plan anew"),
        ([("b", (5, 10))], 4, "tensor 1 is a 100 in the plan and absent here"),
        ([("b", (5, 10)), ("a", (100,)), ("c", ())], 4, "tensor 2 is absent in the plan and c scalar here"),
        (MODELS["vgg16"](), 4, "tensor 0 is b 5x10 in the plan and features.0.weight 64x3x3x3 here"),
        (PROFILE.tensors, 8, "plan must be for 8 ranks, got one for 4, .* plan anew on 8"),
    ],
)
def test_a_plan_for_another_job_is_refused(tensors, number, says):
    with pytest.raises(ValueError, match=says):
        store.check(PLAN, tensors, number)
