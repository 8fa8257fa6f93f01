"""The exit status of an elastic job is that of its program, however that ends."""

from __future__ import annotations

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied

pytestmark = [needs_mpi, pytest.mark.jobs, pytest.mark.usefixtures("survival")]
PROGRAM = """
import os, signal, sys
before = os._exit, sys.exit
import numpy as np
from sparse_mpi.fault_tolerance import ElasticAllreduce
reducer = ElasticAllreduce(100, k=9)
number, (loss, end) = reducer.team.number, sys.argv[1:]
assert (os._exit, sys.exit) == before, "nothing of the interpreter is replaced"
for step in range(4):
    if step == 2:
        exec(loss)
    reducer.step(np.ones(100, np.float32))
sys.stdout.write(f"done {reducer.ranks}\\n")
sys.stdout.flush()
exec(end)
"""
KILLED, RAISES = "if number == 1: os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('for the test')"
FAILURE = "os.kill(os.getpid(), signal.SIGKILL) if number == 2 else reducer.comm.allreduce(np.ones(1))"
LAST, EXIT = "pass", "raise SystemExit(5)"
ENDS = {
    LAST: 0,
    EXIT: 5,
    "raise SystemExit('no number')": 1,
    "sys.exit(5)": 5,
    "sys.exit(5 if number == 0 else 0)": 5,
    "os._exit(5)": 5,
    RAISES: 1,
    FAILURE: 1,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    file = tmp_path_factory.mktemp("status") / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def run(program, loss, end):
    return launch(None, "-m", "sparse_mpi", "run", "--elastic", "-n", "4", *copied(program, loss, end))


def all_of(ends, *fast):
    full = pytest.mark.full("as the others")
    return [end if end in fast else pytest.param(end, marks=full) for end in ends]


@pytest.mark.parametrize("end", all_of(ENDS, FAILURE))
def test_survivors_end_with_the_status_of_the_program(program, end):
    done = run(program, KILLED, end)
    assert (done.returncode, done.stdout.split()) == (ENDS[end], ["done", "3"] * 3), done.stderr


@pytest.mark.parametrize("end", all_of([LAST, EXIT], EXIT))
@pytest.mark.parametrize("loss", all_of([RAISES, "os._exit(0)"], RAISES))
def test_a_rank_that_is_lost_by_itself_has_no_part_in_the_status(program, loss, end):
    done = run(program, f"if number == 1: {loss}", end)
    assert (done.returncode, done.stdout.split()) == (ENDS[end], ["done", "3"] * 3), done.stderr


def test_a_job_of_which_all_ranks_are_lost_has_failed(program):
    done = run(program, RAISES, LAST)
    assert (done.returncode, done.stdout, done.stderr.count("ValueError: for the test") >= 4) == (1, "", True)


@pytest.mark.full("waits for what may not come, on purpose")
def test_a_rank_that_vanishes_unheard_is_named(program):
    done = run(program, "if number == 1: os._exit(3)", LAST)
    assert done.returncode != 0 and "the process of rank 1 has ended by itself" in done.stderr
