"""What docs/reference/versions.md promises of versions and of public names."""

from __future__ import annotations

import importlib
import re

import pytest

import sparse_mpi

from .distribution import ROOT

PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
NAMES = re.search(r"files (.*?), their arguments", PAGE, re.DOTALL)[1]


def test_changelog_and_citation_have_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changes, re.MULTILINE)[0]
    cited = (ROOT / "CITATION.cff").read_text()
    assert version == sparse_mpi.__version__ and changes.index("## [Unreleased]") < changes.index(f"## [{version}]")
    assert f"\nversion: {version}\n" in cited and f"\ndate-released: {date}\n" in cited


@pytest.mark.parametrize("name", re.findall(r"`(\w+)`", NAMES))
def test_public_modules_say_what_is_public(name):
    if name in ("ddp", "local", "optim"):
        pytest.importorskip("torch")
    module = importlib.import_module(f"sparse_mpi.{name}")
    assert all(hasattr(module, public) for public in module.__all__) and len(module.__all__) > 0
