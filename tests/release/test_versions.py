"""What docs/reference/versions.md promises of versions and of public names."""

from __future__ import annotations

import re
from configparser import ConfigParser

from packaging.version import Version

import sparse_mpi

from .distribution import ROOT

PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()


def test_changelog_and_citation_have_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changes, re.MULTILINE)[0]
    cited = (ROOT / "CITATION.cff").read_text()
    assert Version(sparse_mpi.__version__) >= Version(version) and changes.index("## [Unreleased]") < changes.index(
        f"## [{version}]"
    )
    assert f"\nversion: {version}\n" in cited and f"\ndate-released: {date}\n" in cited


def test_the_workbench_has_this_version_and_requires_it():
    setup = ConfigParser()
    setup.read(ROOT / "bench" / "setup.cfg")
    assert setup["metadata"]["version"] == sparse_mpi.__version__
    assert f"sparse_mpi=={sparse_mpi.__version__}" in setup["options"]["install_requires"].split()
