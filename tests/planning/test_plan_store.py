"""Plan files: what is written is read again, and what was altered or is for another job is not."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan, PlannedPart
from sparse_mpi.predict.models import MODELS

TENSORS = {"b": (5, 10), "a": (100,), "c": (2,)}
PARTS = PlannedPart("dense", (2,)), PlannedPart("topka", (0, 1), 13 / 15)
PLAN = Plan(TENSORS, 4, 0.1, "partial", PARTS, {"dense": 0.3, "topka": 0.25, "partial": 0.2})


def test_what_is_written_is_read_and_is_for_people_too(tmp_path):
    store.save(PLAN, tmp_path / "plan.json")
    assert store.load(tmp_path / "plan.json") == PLAN == store.loads(store.dumps(PLAN))
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert '   "b": [5, 10],' in lines and '    "tensors": [0, 1],' in lines


def test_explanations_compare_with_dense():
    said = PLAN.explanation
    assert said.startswith(
        "topka for 2 of 3 tensors, 98.7 % of the elements; the others stay dense. A reduction takes "
    )
    assert said.endswith("0.2 s, dense 0.3 s (1.50 times as long).")
    kept = Plan(TENSORS, 4, 0.1, "dense", (PlannedPart("dense", (0, 1, 2)),), {"dense": 0.3, "topka": 0.29})
    assert kept.explanation == "leave it dense: a reduction takes 0.3 s, at best 0.29 s by topka"


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
        (b"\x89PNG\xff", "p.json must be JSON, but"),
        ("[1]", "p.json must be a sparse_mpi plan, but is none"),
        (edited("sparse_mpi profile", "format"), "p.json must be a sparse_mpi plan, but is none"),
        (edited(1, "version"), "p.json must have version 2 of the format, got 1; make it anew"),
        (edited(None, "hash"), "p.json was altered: .* make it anew"),
        (edited(None, "plan", "ranks"), "p.json was altered"),
        (edited(None, "plan", "parts", 1, "share"), "p.json was altered"),
        (edited(float("nan"), "plan", "density"), "p.json was altered"),
        (edited([1], "plan", "tensors"), "p.json was altered"),
        (edited(0.5, "plan", "parts", 1, "share"), "p.json was altered"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        store.loads(text, "p.json")


@pytest.mark.parametrize(
    ("tensors", "number", "says"),
    [
        ([("b", (5, 10)), ("a", (99,))], 4, "tensor 1 is a 100 in the plan and a 99 here; plan anew"),
        ([("b", (5, 10)), ("a", (100,))], 4, "tensor 2 is c 2 in the plan and absent here"),
        ([*TENSORS.items(), ("d", ())], 4, "tensor 3 is absent in the plan and d scalar here"),
        (MODELS["vgg16"], 4, "tensor 0 is b 5x10 in the plan and features.0.weight 64x3x3x3 here"),
        (TENSORS.items(), 8, "plan must be for 8 ranks, got one for 4, .* plan anew on 8"),
    ],
)
def test_a_plan_for_another_job_is_refused(tensors, number, says):
    with pytest.raises(ValueError, match=says):
        store.check(PLAN, tensors, number)
