"""What docs/reference/versions.md promises: deprecated spellings work, and warn with the new name."""

from __future__ import annotations

import importlib
import re
import warnings

import pytest

import sparse_mpi
from sparse_mpi import SparseAllreduce, World

from .distribution import ROOT

PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (\d+\.\d+)\.0 \| (\d+\.\d+)\.0 \|$", PAGE, re.MULTILINE)
NAMES = re.search(r"files (.*?), their arguments", PAGE, re.DOTALL)[1]


def test_changelog_and_citation_have_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changes, re.MULTILINE)[0]
    cited = (ROOT / "CITATION.cff").read_text()
    assert version == sparse_mpi.__version__ and changes.index("## [Unreleased]") < changes.index(f"## [{version}]")
    assert f"\nversion: {version}\n" in cited and f"\ndate-released: {date}\n" in cited


def one(make):
    """What a call gives on the one rank of a world."""
    return World(1).run(make)[0]


CALLS = {
    "`sparse_mpi.elastic`": lambda: importlib.import_module("sparse_mpi.elastic").Team,
    "`sparse_mpi.keyed`": lambda: importlib.import_module("sparse_mpi.keyed").allreduce,
    "`sparse_mpi.local`": lambda: importlib.import_module("sparse_mpi.local").DiLoCo,
    "`SparseAllreduce.sibling`": lambda: one(lambda comm: SparseAllreduce(9, comm=comm).sibling("dense") and None),
}


def test_the_page_has_every_spelling():
    assert [row[0] for row in ROWS] == list(CALLS)


@pytest.mark.parametrize(("old", "new", "since", "until"), ROWS, ids=[row[0] for row in ROWS])
def test_a_deprecated_spelling_works_and_warns_with_the_new_name(old, new, since, until, capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[old]()
    said = [str(warning.message) for warning in caught if warning.category is DeprecationWarning]
    assert any(new.strip("`") in text for text in said), said
    major, minor = release = tuple(map(int, sparse_mpi.__version__.split(".")[:2]))
    assert tuple(map(int, since.split("."))) <= (major, minor + 1)  # or in the release that is being made
    assert release < tuple(map(int, until.split("."))), "its time is over"


@pytest.mark.parametrize("name", re.findall(r"`(\w+)`", NAMES))
def test_public_modules_say_what_is_public(name):
    if name in ("ddp", "local", "optim"):
        pytest.importorskip("torch")
    module = importlib.import_module(f"sparse_mpi.{name}")
    assert all(hasattr(module, public) for public in module.__all__) and len(module.__all__) > 0
