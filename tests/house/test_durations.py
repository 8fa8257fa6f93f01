"""No test in process takes long, and no folder longer than its row: by the record that is kept, not by this run.

python -m tests.house.test_durations             what folders take by the record, and the figures of their rows
python -m tests.house.test_durations --lower     lower the rows of ``ratchet.json``, and add those of new folders
"""

from __future__ import annotations

import json
from math import ceil
from types import SimpleNamespace

import pytest

from ..durations import IN_PROCESS, KEPT, LONGEST, Durations, folder_of
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
    new = sorted(folders - found - {"tests/ptx"})  # all of which is of the wide tier
    assert not new, f"{new} are not in {KEPT.name}: run make test, and then python -m tests.durations --keep"


def test_a_whole_run_that_passes_leaves_a_record_beside_other_parts_and_no_other_run_does(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.durations.LAST", tmp_path / "durations.json")
    lines = []

    def run(part, status, seconds):
        plugin = Durations(part)
        for test, spent in seconds.items():
            plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=test, user_properties=[("cpu", spent)]))
        plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), status)

    for part, status in ((None, 0), ("jobs", 1), ("jobs", 2)):
        run(part, status, {"tests/a/test_a.py::test_a": 2.34})
        assert not lines and not list(tmp_path.iterdir())
    run("jobs", 0, {"tests/a/test_a.py::test_a": 2.34})
    run(IN_PROCESS, 0, {f"tests/b/test_b.py::test_b[{n}]": n / 10 for n in range(50)})
    (file,) = tmp_path.iterdir()
    jobs, ours = json.loads(file.read_text()).values()
    assert jobs["longer"] == {"tests/a/test_a.py::test_a": 2.3} and jobs["tests"] == 1
    assert ours["folders"] == {"tests/b": pytest.approx(122.5)} and ours["tests"] == 50
    assert len(table := lines[1].splitlines()) == 3 + LONGEST and table[3].split() == [
        "4.9",
        "tests/b/test_b.py::test_b[49]",
    ]


if __name__ == "__main__":
    SECONDS.main(__doc__.splitlines()[0], taken(), {})
