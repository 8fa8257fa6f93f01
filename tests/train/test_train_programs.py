"""Every program trains with every algorithm on 4 ranks, survives kill -9 to the same bits, and shows how it went.

`python -m tests.train.program_jobs` does all of that; here, on 2 ranks, the first program meets all algorithms and each
other one a quarter of them, and two are killed on 4. `make test` trains each program with one algorithm, and kills one.
"""

from __future__ import annotations

import math
import signal
from collections import Counter
from importlib.util import find_spec

import pytest

from sparse_mpi import ALGORITHMS

from ..launch import needs_mpi, start
from .every_algorithm import STEPS
from .program_jobs import KILLED, NEEDS, PROGRAMS, descendants, is_running, kill, shared_memory, survived, trained

MORE = pytest.mark.full("`make programs` trains every program with every algorithm")
pytestmark = [needs_mpi, pytest.mark.jobs, pytest.mark.timeout(900)]


def turn(program: int) -> list[str]:
    """Return the algorithms that program number ``program`` is trained with here, beside its first one."""
    algorithms = list(ALGORITHMS)[program % 4 :: 4] if program else list(ALGORITHMS)
    return [algorithm for algorithm in algorithms if algorithm != list(KILLED.values())[program]]


def assert_good(record: dict) -> None:
    """Assert that a training came to its end, alike on all ranks, and again from its half-way checkpoint."""
    assert record["resumed"] is True and record["identical"] is True and record["steps"] == STEPS, record
    assert math.isfinite(record["loss"]) and math.isfinite(record["score"]), record


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> dict[str, dict]:
    """The record of each program with one algorithm, each with another; all are trained in one start of mpiexec."""
    asked = {name: [KILLED[name]] for name in PROGRAMS if find_spec(NEEDS.get(name, "torch"))}
    return {record["program"]: record for record in trained(asked, tmp_path_factory.mktemp("first"), ranks=2)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_and_is_resumed_to_the_same_bits(name, first):
    if name not in first:
        pytest.skip(f"needs {NEEDS[name]}")
    assert first[name]["algorithm"] == KILLED[name]
    assert_good(first[name])


@pytest.mark.full("every program is trained with one algorithm in the test before, which takes long enough")
@pytest.mark.parametrize(
    ("number", "name"),
    [pytest.param(*each, marks=[MORE][: each[0]]) for each in enumerate(PROGRAMS)],
    ids=PROGRAMS,
)
def test_a_program_trains_with_many_algorithms_and_is_resumed_to_the_same_bits(number, name, tmp_path):
    pytest.importorskip(NEEDS.get(name, "torch"))
    records = trained({name: turn(number)}, tmp_path, ranks=2)
    assert [record["algorithm"] for record in records] == turn(number)
    for record in records:
        assert_good(record)


@pytest.mark.full("test_train_resume kills a smaller program")
@pytest.mark.parametrize("name", ["resnet", "gpt2"])
def test_a_program_that_is_killed_ends_in_the_same_bits_and_shows_bar_scalars_plot_and_timeline(name, tmp_path):
    survival = survived(name, tmp_path)
    assert survival["resumed"] and 2 <= survival["killed_after"] < 12, survival
    assert all(survival["shows"].values()), survival


def test_every_algorithm_has_its_turn_with_several_programs():
    meetings = Counter(
        algorithm for number in range(len(PROGRAMS)) for algorithm in [*turn(number), list(KILLED.values())[number]]
    )
    assert set(meetings) == set(ALGORITHMS) and min(meetings.values()) >= 3
    assert KILLED.keys() == PROGRAMS.keys() and len(set(KILLED.values())) == len(KILLED)
    assert set(KILLED.values()) <= set(ALGORITHMS)


RANK = "from mpi4py import MPI; import time; MPI.COMM_WORLD.barrier(); print('ready', flush=True); time.sleep(300)"


def test_a_kill_leaves_no_process_and_no_shared_memory(tmp_path):
    job = start(2, "-c", RANK, TMPDIR=str(tmp_path))
    assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    everybody = descendants(job.pid)
    ranks = [pid for pid in everybody if shared_memory(pid)]
    files = [file for pid in ranks for file in shared_memory(pid)]
    kill(job)
    assert job.returncode == -signal.SIGKILL and not any(map(is_running, everybody))
    assert len(ranks) >= 2 and files and not any(file.exists() for file in files)
