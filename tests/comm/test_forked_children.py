"""A child that a rank forks, however it ends, is no rank: the job goes on, whatever threads and hooks it has."""

from __future__ import annotations

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied, torchrun

PROGRAM = """
import multiprocessing, os, sys, threading
import numpy as np
if sys.argv[1] == "torchrun":
    import torch.distributed
    torch.distributed.init_process_group("gloo")
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm

reducer, gradient = SparseAllreduce(1000, k=10), np.ones(1000, np.float32)
forked = multiprocessing.get_context("fork")


def failing():
    1 / 0


def in_thread():
    thread = threading.Thread(target=failing)
    thread.start()
    thread.join()
    sys.exit(5)


def computing():
    other = SparseAllreduce(1000, k=10, comm=NullComm())
    other.start(gradient).wait()
    sys.exit(6)


def calling():
    try:
        reducer.step(gradient)
    except RuntimeError as error:
        sys.exit(7 if "forked child" in str(error) else 8)


def status(child):
    number = os.fork()
    if number == 0:
        child()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def status_of_process(child):
    process = forked.Process(target=child)
    process.start()
    process.join()
    return process.exitcode


reducer.start(gradient).wait()  # by a progress thread
if reducer.comm.rank == 0:
    children = [lambda: None, lambda: sys.exit(3), lambda: os._exit(4), failing, in_thread, computing, calling]
    print([status(child) for child in children], [status_of_process(child) for child in children[1:4]], flush=True)
reducer.step(gradient)
print("done", flush=True)
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    "transport",
    [
        pytest.param("mpiexec", marks=needs_mpi),
        pytest.param("torchrun", marks=pytest.mark.full("what a child inherits is not the launcher's")),
    ],
)
def test_a_forked_child_neither_ends_nor_stops_its_parents_job(tmp_path, transport):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = str(program), transport
    ranks, command = (2, copied(*own)) if transport == "mpiexec" else (None, torchrun(2, *own))
    variables = {"SPARSE_MPI_WATCH": "1", "OMP_NUM_THREADS": "1", "SPARSE_MPI_METRICS_DIR": str(tmp_path)}
    done = launch(ranks, *command, **variables)
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stdout + done.stderr
    assert "[0, 3, 4, 1, 5, 6, 7] [3, 4, 1]" in done.stdout, done.stdout + done.stderr
    assert done.stderr.count("Traceback") == 3 and "aborts the job" not in done.stderr, done.stderr
    texts = [file.read_text() for file in tmp_path.glob("*.prom")]
    assert len(texts) == 2 and all('reducer="0"} 2\n' in text and 'reducer="1"' not in text for text in texts)
