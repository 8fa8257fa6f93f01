"""A seed under which a law does not hold is named and kept, and later runs of the test try it first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..schedules import MOST_KEPT, Schedules

ROOT = Path(__file__).parents[2]


def tried(schedules: Schedules, *bad: int) -> list[int]:
    """The seeds that are tried of a law that does not hold under some."""
    seen = []

    def law(seed):
        seen.append(seed)
        if seed in bad:
            raise ValueError("planted")

    if set(bad).isdisjoint([*schedules.kept, *schedules.seeds]):
        schedules.hold(law, str)
    else:
        with pytest.raises(AssertionError, match=r"^schedule (\d+) ends in ValueError\('planted'\); replay: \1$"):
            schedules.hold(law, str)
    return seen


def test_a_failing_seed_is_kept_and_tried_first_by_its_test_alone(tmp_path):
    own, other = Schedules(range(5), tmp_path, "test[a b]"), Schedules(range(5), tmp_path, "test[b]")
    assert tried(own, 3) == [0, 1, 2, 3] and own.kept == [3]
    assert tried(own, 3, 4) == [3] and tried(own, 4) == [3, 0, 1, 2, 4]
    # mended: they are still tried, each once, and nothing else was left behind
    assert tried(own) == [3, 4, 0, 1, 2] and len(list(tmp_path.iterdir())) == 2
    assert tried(Schedules([], tmp_path, "test[a b]")) == [3, 4]
    assert tried(other) == [*range(5)] == tried(Schedules(range(5)))


def test_the_newest_are_kept(tmp_path):
    for seed in range(MOST_KEPT + 5):
        tried(Schedules([seed], tmp_path), seed)
    assert Schedules([], tmp_path).kept == [*range(5, MOST_KEPT + 5)]


def test_a_seed_that_ends_the_process_is_kept(tmp_path):
    program = "import os, sys; from pathlib import Path; from tests.schedules import Schedules as S; "
    program += "S(range(9), Path(sys.argv[1]), 'test').hold(lambda seed: seed == 6 and os._exit(9), str)"
    assert subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, timeout=60).returncode == 9
    assert Schedules([], tmp_path, "test").kept == [6]


SUITE = """
import pytest
from tests.schedules import Schedules

def pytest_addoption(parser):
    parser.addoption("--tier", default="fast")

@pytest.fixture
def schedules(request):
    return Schedules.of(request)
"""
LAWS = """
import os, pytest

@pytest.mark.parametrize("case", range(6))
def test_law(schedules, case):
    tried = []
    try:
        schedules.hold(lambda seed: tried.append(seed) or 1 / (seed != 10 * case + 7 or "MENDED" in os.environ), str)
    finally:
        print(f"{case} tried {tried[0]} to {tried[-1]}")
"""


@pytest.mark.jobs
def test_processes_of_pytest_keep_seeds_side_by_side(tmp_path):
    (tmp_path / "conftest.py").write_text(SUITE)
    (tmp_path / "test_laws.py").write_text(LAWS)

    def run(*options, **variables):
        """Which seed of each case failed, and the first and the last one that were tried."""
        command = [sys.executable, "-m", "pytest", "-q", "-rA", f"--rootdir={tmp_path}", *options, str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, timeout=100)
        failed = re.findall(
            r"^E +AssertionError: schedule (\d+) ends in ZeroDivisionError.*; replay: \1$", done.stdout, re.M
        )
        seen = re.findall(r"^(\d) tried (\d+) to (\d+)$", done.stdout, re.M)
        return sorted(map(int, failed)), sorted(tuple(map(int, each)) for each in seen)

    bad = [10 * case + 7 for case in range(6)]
    assert run("--tier", "all", "-n2") == (bad, [(case, 0, seed) for case, seed in enumerate(bad)])
    # The fast tier would not have come to them
    assert run("-n2") == (bad, [(case, seed, seed) for case, seed in enumerate(bad)])
    assert run(MENDED="yes") == ([], [(case, seed, 5) for case, seed in enumerate(bad)])
    assert run("-p", "no:cacheprovider") == ([], [(case, 0, 5) for case in range(6)])
