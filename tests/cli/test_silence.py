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
way, leave, end = sys.argv[1:]
if "Finalize" in end:
    watchdog.POLL = 0  # so that some poll would fall into MPI_Finalize
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
x = np.random.default_rng(rank).standard_normal(100).astype(np.float32)
comm = sparse_mpi.comm.as_comm(None)
part = comm.split(rank // 2)
reducer = sparse_mpi.SparseAllreduce(100, k=9) if way in ("reducer", "background", "unwaited") else None
WAYS = {
    "reducer": lambda: reducer.step(x),
    "background": lambda: reducer.start(x).wait(),
    "unwaited": lambda: reducer.start(x),
    "once": lambda: sparse_mpi.sparse_allreduce(x, k=9),
    "part": lambda: part.allreduce(x),
    "ring": lambda: comm.sendrecv(x, (rank + 1) % size, (rank - 1) % size),
}
for step in range(9):
    if step == 3 and rank == size - 1:
        exec(leave)
    WAYS[way]()
exec(end)
print(f"rank {rank} is done", flush=True)
"""
RAISES, ENDS, VANISHES = "raise ValueError('for the test')", "sys.exit()", "os._exit(0)"
THREAD = "threading.Thread(target=lambda: 1 / 0).start(); time.sleep(600)"
DAEMON = "helper = threading.Thread(target=lambda: 1 / 0, daemon=True); helper.start(); helper.join()"
ENDED = "waits for rank 2, which has ended its program: it has been in "
OTHERS = [(THREAD, "ZeroDivisionError"), (ENDS, ENDED), ("os._exit(3)", "")]
LESS = pytest.mark.full("as a part of the job does")


@pytest.fixture
def run(python, tmp_path):
    """Run the program on so many ranks; return status, output and errors of the job."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)

    def done(ranks, way, leave, end="pass", **variables):
        # A copy would not end as a process of its own does that vanishes
        alone = python != sys.executable or "_exit" in leave
        program = [file, way, leave, end] if alone else copied(str(file), way, leave, end)
        return finish(start(python, tmp_path, "-n", ranks, *program, **variables), tmp_path)

    return done


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (RAISES, "ValueError: for the test"),
        (VANISHES, ""),  # the launcher says why
        ("MPI.Finalize(); sys.exit()", ENDED),
        *(pytest.param(way, reason, marks=pytest.mark.full("much as the others")) for way, reason in OTHERS),
    ],
)
def test_a_job_ends_when_a_rank_does(python, run, what, reason):
    status, out, error = run(3, "reducer", what)
    assert reason in error and "is done" not in out
    # MPICH's mpiexec ends the others too, but its status is that of the process that has vanished
    assert status != 0 or (what == VANISHES and "mpich" in str(python))


OTHER_WAYS = ("background", "unwaited", "ring", "once")


@pytest.mark.parametrize("way", ["part", *(pytest.param(way, marks=LESS) for way in OTHER_WAYS)])
def test_whoever_waits_for_it_says_so(run, way):
    """Rank 2 waits in a part of the job, or in a ring, and those that wait for rank 2 are not mistaken."""
    status, _, error = run(4, way, ENDS)
    assert status != 0 and "waits for rank 3, which has ended its program: it has been in" in error
    assert "waits for rank 2" not in error


@pytest.mark.parametrize(("way", "watch"), [("reducer", "1"), ("unwaited", "0")])
def test_a_program_may_finalise_mpi_itself(run, way, watch):
    """Neither the watchdog nor background work calls MPI once the program finalises it."""
    status, out, error = run(
        3, way, "time.sleep(0.5)", "time.sleep(0.2 * rank); MPI.Finalize()", SPARSE_MPI_WATCH=watch
    )
    assert status == 0 and out.count("is done") == 3, error


def test_ranks_may_end_at_different_times_and_the_thread_of_a_library_may_fail(run):
    """It is a daemon, as the one that writes TensorBoard's events and finds the disk full; the job goes on."""
    status, out, error = run(3, "reducer", DAEMON, "time.sleep(2.5 * (rank == size - 1))")
    assert status == 0 and out.count("is done") == 3 and "sparse_mpi:" not in error
    assert "Exception in thread" in error and "ZeroDivisionError" in error


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "rank 2 does not answer"),
        pytest.param(
            "time.sleep(600)", "s ago, and has made no call since", marks=pytest.mark.full("as one that stops")
        ),
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
