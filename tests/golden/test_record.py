"""Records are added and replaced by name, at their place, and others keep their bytes."""

from __future__ import annotations

import json

import pytest

from .. import record
from ..record import check, with_cost, with_trajectories
from ..tables import inserted, with_cells
from . import trajectories
from .trajectories import RECORD

TEXT = RECORD.read_text()
KNOWN = json.loads(TEXT)["cases"]
PAGE = "Head\n<!-- a -->\n| x | y |\n| --- | --- |\n| `one` | 1 |\n| `three` | 3 |\n<!-- /a -->\nTail\n"


def test_what_is_recorded_again_leaves_every_byte(monkeypatch):
    monkeypatch.setattr(trajectories, "machine", lambda: json.loads(TEXT)["machine"])
    assert with_trajectories(TEXT, {name: KNOWN[name] for name in ("topka", "DiLoCo, flushed")}) == TEXT
    costs = record.DEVICE_COSTS.read_text()
    assert with_cost(costs, "elect", json.loads(costs)["elect"], [*json.loads(costs)]) == costs
    assert with_cells(PAGE, "a", "three", ["3"], ["one", "three"]) == PAGE


def test_a_case_of_another_machine_says_so(monkeypatch):
    here = {"cpu": "another"}
    monkeypatch.setattr(trajectories, "machine", lambda: here)
    found = json.loads(with_trajectories(TEXT, {"topka": []}))
    assert (
        found["machine"] != here and found["elsewhere"] == {"topka": here} and found["cases"] == KNOWN | {"topka": []}
    )
    whole = json.loads(with_trajectories(json.dumps(found), KNOWN))
    assert whole["machine"] == here and whole["elsewhere"] == {} and whole["cases"] == KNOWN


def test_what_is_new_has_its_place_and_what_is_gone_none():
    assert [*inserted({"c": 1, "gone": 2, "a": 3}, {"b": 4, "d": 5, "a": 6}, "abcd")] == ["b", "c", "a", "d"]
    page = with_cells(PAGE, "a", "two", ["2"], ["one", "two", "three"])
    assert page == PAGE.replace("| `three`", "| two | 2 |\n| `three`")
    assert "one" not in with_cells(PAGE, "a", "three", ["4"], ["three"])


def test_an_unknown_name_is_told_all_names(monkeypatch):
    with pytest.raises(ValueError, match=r"ring has no records\. algorithms: dense, .*; trajectories: .*DiLoCo"):
        check(["topka", "ring"])
    monkeypatch.setattr(record, "known", lambda: {"algorithms": ["ring"], "feedback rules": [], "message formats": []})
    monkeypatch.setattr("tests.fakes.fake_cuda.COMPILER", "g++")
    with pytest.raises(ValueError, match=r"docs/reference/algorithms\.md has no row of ring yet: write one"):
        check(["ring"])
