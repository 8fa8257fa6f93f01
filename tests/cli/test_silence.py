"""No rank waits in silence for one that does not come, whatever that one did, and without any option."""

from __future__ import annotations

import sys

import pytest

from ..launch import needs_mpi
from ..prefork import copied
from .launcher import finish, start

pytestmark = [needs_mpi, pytest.mark.jobs]
PROGRAM = """
import os, signal, sys, threading, time
sys.modules["numba"] = None  # kernels of NumPy start sooner
import numpy as np
import sparse_mpi
from mpi4py import MPI
from sparse_mpi.comm.job import mpi_watchdog, watchdog

mpi_watchdog.LATE = 1.0
way, what = sys.argv[1:3]
if what == "finalize-last":
    watchdog.POLL = 0  # so that some poll would fall into MPI_Finalize
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
x = np.random.default_rng(rank).standard_normal(100).astype(np.float32)
reducer = sparse_mpi.SparseAllreduce(100, k=9) if way == "reducer" else None
comm = sparse_mpi.comm.as_comm(None)
part = comm.split(rank // 2)

def leave():
    if what == "raise":
        raise ValueError("for the test")
    if what == "thread":
        threading.Thread(target=lambda: 1 / 0).start()
        time.sleep(600)
    if what == "late":
        helper = threading.Thread(target=lambda: 1 / 0, daemon=True)
        helper.start()
        helper.join()
    if what == "exit":
        sys.exit(int(sys.argv[3]))
    if what == "finalize":
        MPI.Finalize()
        sys.exit()
    if what == "vanish":
        os._exit(int(sys.argv[3]))
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "finalize-last":
        time.sleep(0.5)  # the others' work lasts until then
    if what == "sleep":
        time.sleep(600)

for step in range(9):
    if step == 3 and rank == size - 1:
        leave()
    if way == "reducer":
        reducer.step(x)
    elif way == "background":
        reducer = reducer or sparse_mpi.SparseAllreduce(100, k=9)
        reducer.start(x).wait()
    elif way == "unwaited":
        reducer = reducer or sparse_mpi.SparseAllreduce(100, k=9)
        reducer.start(x)
    elif way == "once":
        sparse_mpi.sparse_allreduce(x, k=9)
    elif way == "part":
        part.allreduce(x)
    elif way == "ring":
        comm.sendrecv(x, (rank + 1) % size, (rank - 1) % size)
if what == "late" and rank == size - 1:
    time.sleep(2.5)
if what == "finalize-last":
    time.sleep(0.2 * rank)
    MPI.Finalize()
print(f"rank {rank} is done", flush=True)
"""

OTHERS = [
    (("thread",), "ZeroDivisionError"),
    (("exit", "0"), "waits for rank 2, which has ended its program: it has been in "),
    (("vanish", "3"), ""),
]
LESS = pytest.mark.full("as a part of the job does")


@pytest.fixture
def run(python, tmp_path):
    """Run the program on so many ranks; return status, output and errors of the job."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)

    def done(ranks, *arguments, **variables):
        # A copy would not end as a process of its own does that vanishes
        alone = python != sys.executable or "vanish" in arguments
        program = [file, *arguments] if alone else copied(str(file), *arguments)
        return finish(start(python, tmp_path, "-n", ranks, *program, **variables), tmp_path)

    return done


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (("raise",), "ValueError: for the test"),
        (("vanish", "0"), ""),  # the launcher says why
        (("finalize",), "waits for rank 2, which has ended its program: it has been in "),
        *(pytest.param(way, reason, marks=pytest.mark.full("much as the others")) for way, reason in OTHERS),
    ],
)
def test_a_job_ends_when_a_rank_does(python, run, what, reason):
    status, out, error = run(3, "reducer", *what)
    assert reason in error and "is done" not in out
    # MPICH's mpiexec ends the others too, but its status is that of the process that has vanished
    assert status != 0 or (what == ("vanish", "0") and "mpich" in str(python))


OTHER_WAYS = ("background", "unwaited", "ring", "once")


@pytest.mark.parametrize("way", ["part", *(pytest.param(way, marks=LESS) for way in OTHER_WAYS)])
def test_whoever_waits_for_it_says_so(run, way):
    """Rank 2 waits in a part of the job, or in a ring, and those that wait for rank 2 are not mistaken."""
    status, _, error = run(4, way, "exit", "0")
    assert status != 0 and "waits for rank 3, which has ended its program: it has been in" in error
    assert "waits for rank 2" not in error


@pytest.mark.parametrize(("way", "watch"), [("reducer", "1"), ("unwaited", "0")])
def test_a_program_may_finalise_mpi_itself(run, way, watch):
    """Neither the watchdog nor background work calls MPI once the program finalises it."""
    status, out, error = run(3, way, "finalize-last", SPARSE_MPI_WATCH=watch)
    assert status == 0 and out.count("is done") == 3, error


def test_ranks_may_end_at_different_times_and_the_thread_of_a_library_may_fail(run):
    """It is a daemon, as the one that writes TensorBoard's events and finds the disk full; the job goes on."""
    status, out, error = run(3, "reducer", "late")
    assert status == 0 and out.count("is done") == 3 and "sparse_mpi:" not in error
    assert "Exception in thread" in error and "ZeroDivisionError" in error


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("stop", "rank 2 does not answer"),
        pytest.param("sleep", "s ago, and has made no call since", marks=pytest.mark.full("as one that stops")),
    ],
)
def test_a_rank_that_waits_for_too_long_says_for_whom(run, what, where):
    status, _, error = run(3, "reducer", what, SPARSE_MPI_TIMEOUT="4")
    said = [line for line in error.splitlines() if line.startswith("sparse_mpi: rank")]
    # Whoever says it first ends the job some seconds later: on a busy machine another may not come to say so
    assert status != 0 and said and {line.split()[2] for line in said} <= {"0", "1"}
    for line in said:
        assert "of reduction 4 for" in line and "longer than 4 s, and waits for others: rank 2 " in line
        assert where in line and "rank 0 " not in line.split("others:")[1] and line.count("rank 1 ") <= 1
