"""A table gives room and says what to do where that is used up, and is lowered whole or not at all."""

from __future__ import annotations

import json
import os

import pytest

from . import ratchet
from .ratchet import Ratchet, allowed


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return a function that makes a ratchet of these figures, with 60 at least for the row ``folder``."""
    file = tmp_path / "ratchet.json"
    monkeypatch.setattr(ratchet, "FILE", file)

    def make(**figures):
        file.write_text(json.dumps({"sizes": figures, "others": {"a": 1}, "parts": ["old.py"]}))
        return Ratchet("sizes", "tests.x", lambda row: 60 if row == "folder" else 0)

    make.file = file
    return make


def test_room_is_two_percent_or_a_least_number():
    assert [allowed(0), allowed(49), allowed(50), allowed(1000), allowed(5000)] == [0, 49, 51, 1020, 5100]
    assert [allowed(0, 60), allowed(1000, 60), allowed(5000, 60)] == [60, 1060, 5100]


def test_an_error_has_the_figures_and_what_to_do(table):
    made = table(folder=1000, none=0)
    made.check("folder", 1060)
    made.check("none", 0)
    wrong = r"^folder: 1,061; 1,060 are allowed, 60 over the 1,000 of the last release\. Take something away, or raise"
    with pytest.raises(AssertionError, match=wrong):
        made.check("folder", 1061)
    with pytest.raises(AssertionError, match="none: 1; 0 are allowed"):
        made.check("none", 1)
    with pytest.raises(AssertionError, match=r"new has no row in ratchet.json: python -m tests\.x --lower writes it"):
        made.check("new", 1)


def test_lowering_keeps_what_is_lower_and_takes_new_parts_and_folders_in(table, monkeypatch, capsys):
    made = table(folder=1000, grown=100, gone=7)
    found, added = {"folder": 900, "grown": 102, "new": 50}, {"folder": 200}
    monkeypatch.setattr("sys.argv", ["x"])
    before = table.file.read_text()
    made.main("title", found, added, ["new.py"])
    assert table.file.read_text() == before and "and 200 of new parts" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["x", "--lower"])
    made.main("title", found, added, ["new.py"])
    sizes = {"folder": 1100, "grown": 100, "new": 50}
    assert json.loads(table.file.read_text()) == {"sizes": sizes, "others": {"a": 1}, "parts": ["new.py"]}


def test_who_is_interrupted_leaves_the_table_as_it_was(table, monkeypatch):
    made = table(folder=1000)
    before = table.file.read_text()
    monkeypatch.setattr("sys.argv", ["x", "--lower"])

    def interrupted(*files):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.main("title", {"folder": 1}, {})
    assert table.file.read_text() == before and os.listdir(table.file.parent) == ["ratchet.json"]
