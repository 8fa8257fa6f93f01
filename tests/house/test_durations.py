"""No test in process takes long, and no folder longer than its row: by the record that is kept, not by this run.

python -m tests.house.test_durations             what folders take by the record, and the figures of their rows
python -m tests.house.test_durations --lower     lower the rows of ``ratchet.json``, and add those of new folders
"""

from __future__ import annotations

import json
from math import ceil
from types import SimpleNamespace

import pytest

from ..durations import IN_PROCESS, KEPT, LONGEST, Durations, folder_of, shown, write
from .ratchet import Ratchet
from .test_layers import ROOT

MOST = 3.0  # CPU seconds of a test in process
ROOM = 10  # CPU seconds that a folder may take more than at the last release, at least: machines differ
RECORD = json.loads(KEPT.read_text())
SECONDS = Ratchet("seconds", "tests.house.test_durations", lambda row: ROOM)


def taken() -> dict[str, int]:
    """CPU seconds of each folder in process."""
    return {folder: ceil(seconds) for folder, seconds in RECORD[IN_PROCESS]["folders"].items()}


def test_no_test_takes_long():
    longer = {test: seconds for test, seconds in RECORD[IN_PROCESS]["longer"].items() if seconds > MOST}
    assert not longer, f"at most {MOST} CPU s; make it shorter, or leave a part of it to the wide tier: {longer}"


@pytest.mark.parametrize("folder", taken())
def test_no_folder_takes_longer_than_its_row(folder):
    SECONDS.check(folder, taken()[folder])


def test_every_folder_is_in_the_record():
    folders = {folder_of(file.relative_to(ROOT).as_posix()) for file in (ROOT / "tests").glob("*/test_*.py")}
    found = set().union(*(part["folders"] for part in RECORD.values()))
    new = sorted(folders - found - {"tests/slurm"})
    assert not new, f"{new} are not in {KEPT.name}: run make test, and then python -m tests.durations --keep"


def test_a_whole_run_that_passes_leaves_a_record_and_no_other_does(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr("tests.durations.LAST", tmp_path / "durations.json")
    for part, status in ((None, 0), ("jobs", 1), ("jobs", 2)):
        plugin = Durations(part)
        plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), status)
    assert not lines and not list(tmp_path.iterdir())
    plugin = Durations("jobs")
    plugin.pytest_runtest_logreport(
        SimpleNamespace(nodeid="tests/a/test_b.py::test_c", user_properties=[("cpu", 2.34)])
    )
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), 0)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["jobs"]["longer"] == {"tests/a/test_b.py::test_c": 2.3}
    assert "jobs: 1 tests, 2 CPU s" in lines[0]


def test_a_record_has_folders_and_the_longest_tests_and_keeps_other_parts(tmp_path):
    file = tmp_path / "durations.json"
    write("jobs", {"tests/a/test_a.py::test_a": 1.0}, 60, file)
    write(IN_PROCESS, {f"tests/b/test_b.py::test_b[{n}]": n / 10 for n in range(50)}, 120, file)
    record = json.loads(file.read_text())
    assert [*record] == ["jobs", IN_PROCESS] and record["jobs"]["folders"] == {"tests/a": 1.0}
    assert record[IN_PROCESS]["folders"] == {"tests/b": pytest.approx(122.5)} and record[IN_PROCESS]["tests"] == 50
    table = shown({IN_PROCESS: record[IN_PROCESS]}).splitlines()
    assert len(table) == 3 + LONGEST and table[3].split() == ["4.9", "tests/b/test_b.py::test_b[49]"]


if __name__ == "__main__":
    SECONDS.main(__doc__.splitlines()[0], taken(), {})
