"""Device arrays over NCCL: the bodies of other tests over a pretended one, and what only it has; one rank for real."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from threading import get_ident
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm, as_comm
from sparse_mpi.comm.job import nccl_watchdog
from sparse_mpi.comm.job.watchdog import WatchdogThread
from sparse_mpi.comm.nccl import NcclComm

from ..fakes import fake_array, fake_cuda, fake_nccl
from ..fakes.fake_device import NOT_READY
from ..kernels.test_gpu import device_count
from .laws import assert_as_in_a_world, assert_reduced_to_its_ends, assert_rows_of_another_size_are_refused
from .on_device import OnDevice
from .test_device_budget import LAYOUT, K

pytestmark = pytest.mark.ranks(1, 3)


@pytest.fixture
def nccl(device, monkeypatch):
    return fake_nccl.install(monkeypatch)


class NcclRanks:
    """What the fixture ``ranks`` gives, over NCCL."""

    def __init__(self, ranks, nccl) -> None:
        self.size, self._ranks, self._nccl = ranks.size, ranks, nccl

    def run(self, fn, wrap=OnDevice):
        def body(comm):
            self._nccl.over(comm.duplicate())
            return fn(wrap(NcclComm(comm)))

        return self._ranks.run(body)


@pytest.fixture
def ranks(ranks, nccl):
    return NcclRanks(ranks, nccl)


def test_every_call_returns_and_counts_what_it_does_in_a_world(ranks):
    assert_as_in_a_world(ranks)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int8", "uint64", "int64", "float32"])
def test_every_type_is_reduced(ranks, dtype):
    """16-bit integers wrap around as they do elsewhere, though NCCL does not know them."""
    assert_reduced_to_its_ends(ranks, dtype)


def test_what_goes_over_nccl_and_what_over_the_host(ranks, nccl, device):
    """Known counts cost one group and nothing on the host; host arrays go over the host alone."""
    size = ranks.size

    def body(comm):
        own = sys.modules["cupy"].asarray(np.arange(size) + comm.rank)
        each = np.ones(size, int)
        comm.barrier()  # of the host; NCCL has no communicator yet
        assert comm.device.watchdog.made is None
        comm.bcast(own)
        comm._host.barrier()
        sends, before = (own.get(), own), len(nccl.calls)
        waited = len(device.synchronised)
        for send in sends:
            host = comm._host.traffic.copy()
            comm.alltoallv(send, each, each)
            comm.allgatherv(send, each * size)
            comm.allgatherv(send[comm.rank :], np.arange(size, 0, -1))
            comm.allgather(send)
            comm.allreduce(send)
        assert (comm._host.traffic - host).messages == 0
        assert len(device.synchronised) == waited
        comm._host.barrier()
        mine, peer = nccl.calls[before:], comm.rank ^ 1
        copied = len(device.copies)
        comm.alltoallv(own, each)
        comm.allgatherv(own[comm.rank :])
        comm.bcast(own)
        comm.sendrecv(own, *[peer if peer < size else None] * 2)
        assert len(device.copies) == copied, "data went through host memory"
        assert len(device.synchronised) == waited, "an exchange waits for the device"
        return mine

    for calls in ranks.run(body, wrap=lambda comm: comm):
        assert set(calls) == {"allGather", "allReduce"} | ({"group"} if size > 1 else set())


@pytest.mark.ranks(2)
def test_rows_of_another_size_are_refused(ranks):
    assert_rows_of_another_size_are_refused(ranks)


@pytest.mark.ranks(3)
def test_where_one_rank_has_no_nccl_all_raise(ranks, nccl):
    def body(comm):
        nccl.hide(comm.rank == 1)
        with pytest.raises(RuntimeError if comm.rank == 1 else ValueError) as caught:
            NcclComm(comm._host)
        return str(caught.value)

    for error in ranks.run(body, wrap=lambda comm: comm):
        assert "NCCL must be installed where CuPy finds it, it is not; install nvidia-nccl-cu13" in error


def test_identifiers_are_bytes_or_before_cupy_14_tuples(ranks, nccl):
    for kind in (bytes, tuple):
        nccl.id_type = kind
        totals = ranks.run(lambda comm: comm.allreduce(np.ones(3, np.int64)).tolist())
        assert totals == [[ranks.size] * 3] * ranks.size


def test_where_no_identifier_is_made_all_raise(ranks, nccl):
    def body(comm):
        nccl.failed = True
        with pytest.raises(RuntimeError if comm.rank == 0 else ValueError, match="NCCL_ERROR_SYSTEM_ERROR"):
            comm.allreduce(sys.modules["cupy"].ones(3))

    ranks.run(body, wrap=lambda comm: comm)


@pytest.mark.in_world  # the device is pretended, and what carries messages makes no step wait
@pytest.mark.ranks(4)
@pytest.mark.parametrize(("algorithm", "waits", "launches"), [("elect", 0, 35), ("oktopk", 3, 13), ("quota", 0, 5)])
def test_a_step_waits_only_for_what_the_host_must_know(ranks, device, algorithm, waits, launches, monkeypatch):
    """Steps of `quota` and `elect`, of any scale, have the same launches and arrays, `quota`'s the same numbers."""
    if fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    fake_cuda.install_kernels(monkeypatch)
    launch, allocate, done = fake_cuda.Kernel.__call__, fake_array.allocate, defaultdict(list)

    def noted_launch(kernel, grid, block, arguments, **options):
        forms = [(one.shape, one.dtype) if one.shape else one for one in arguments]
        done[get_ident()].append((kernel, grid, block, forms, options))
        launch(kernel, grid, block, arguments, **options)

    monkeypatch.setattr(fake_cuda.Kernel, "__call__", noted_launch)
    monkeypatch.setattr(fake_array, "allocate", lambda a: done[get_ident()].append((a.shape, a.dtype)) or allocate(a))

    def body(comm):
        reducer, spent, steps = SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=algorithm), [], []
        mine, grows = done[get_ident()], 1 if algorithm == "oktopk" else 10
        for step in range(6):
            drawn = np.random.default_rng([comm.rank, step]).standard_normal(LAYOUT.size).astype(np.float32)
            gradient = sys.modules["cupy"].asarray(drawn * grows**step)
            for log in (device.synchronised, device.copies, mine):
                log.clear()
            before = device.launched
            reducer.step(gradient)
            spent.append((len(device.synchronised), device.launched - before, len(device.copies)))
            steps.append(list(mine))
        steps = [[one if algorithm == "quota" else one[:3] for one in step] for step in steps]
        assert algorithm == "oktopk" or (steps[1] and all(step == steps[1] for step in steps[2:]))
        return min(spent)

    found = np.max(ranks.run(body, wrap=lambda comm: comm), axis=0)
    assert (found <= [waits, launches, 0]).all()


@pytest.mark.ranks(3)
def test_a_group_is_ended_after_an_error_too(ranks, nccl):
    def body(comm):
        own, each = sys.modules["cupy"].asarray(np.arange(3)), np.ones(3, int)
        comm.bcast(own)
        comm._host.barrier()
        nccl.failed = True
        with pytest.raises(fake_nccl.NcclError):
            comm.alltoallv(own, each, each)
        comm._host.barrier()
        nccl.failed = False
        return comm.alltoallv(own, each, each)[0].tolist()

    assert ranks.run(body, wrap=lambda comm: comm) == [[rank] * 3 for rank in range(3)]


@pytest.mark.parametrize("yield_cpu", [False, True])
def test_a_failure_of_nccl_ends_the_communicator(ranks, nccl, capfd, yield_cpu):
    """Another rank is gone. What asks NCCL says so, and all later calls raise."""

    def body(comm):
        over, x = comm.duplicate(yield_cpu), sys.modules["cupy"].ones(3)
        over.allreduce(x)
        comm._host.barrier()
        nccl.failed = True
        over.device.watchdog.poll()
        assert over.device.watchdog.made.gone == "aborted"
        for call in (over.allreduce, over.bcast):
            with pytest.raises(RuntimeError, match="must not have failed before a call, it has: NCCL_ERROR.*remote"):
                call(x)
        with pytest.raises(RuntimeError, match="remote process exited"):
            over.barrier()

    ranks.run(body, wrap=lambda comm: comm)
    assert f" of {ranks.size} gives up NCCL: NCCL_ERROR_UNHANDLED" in capfd.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    """Seconds as NCCL's calls are timed by, which stand still."""
    now = [1.0]
    monkeypatch.setattr("sparse_mpi.comm.job.nccl_watchdog.perf_counter", lambda: now[0])
    return now


@pytest.fixture
def alone(nccl, clock, monkeypatch):
    """One rank over NCCL, whose calls must not take long."""
    nccl.over(NullComm())
    monkeypatch.setenv("SPARSE_MPI_TIMEOUT", "0.01")
    comm = NcclComm(NullComm())
    comm.allreduce(sys.modules["cupy"].ones(3))
    return comm


def test_an_exchange_that_takes_too_long_ends(alone, clock, device):
    for _ in range(3):  # all is done by now
        alone.device.watchdog.poll()
        clock[0] += 0.02
    device.stuck[0] = NOT_READY
    alone.allreduce(sys.modules["cupy"].ones(3))  # returns: the host does not wait
    alone.device.watchdog.poll()
    clock[0] += 0.02
    alone.device.watchdog.poll()
    assert alone.device.watchdog.made.gone == "aborted"
    with pytest.raises(RuntimeError, match=r"must end within SPARSE_MPI_TIMEOUT=0\.01 seconds, it did not"):
        alone.barrier()


def test_a_host_that_cannot_queue_an_exchange_ends(alone, clock):
    """As where the other ranks, which NCCL looks for in the first one, do not come."""
    with pytest.raises(RuntimeError, match="must end within SPARSE_MPI_TIMEOUT"), alone.device.watchdog.queueing():
        clock[0] += 0.02
        alone.device.watchdog.poll()
    assert alone.device.watchdog.made.gone == "aborted"


def test_a_thread_asks_all_communicators_as_long_as_they_live(nccl, monkeypatch):
    thread = WatchdogThread()
    monkeypatch.setattr(thread, "_thread", "which tests are")
    monkeypatch.setattr(nccl_watchdog, "WATCHDOG_THREAD", thread)
    nccl.over(NullComm())
    comms = [NcclComm(NullComm()) for _ in range(2)]
    made = []
    for comm in comms:
        comm.allgather(sys.modules["cupy"].ones(3))
        made.append(comm.device.watchdog.made)
    assert len(thread._watchdogs) == 2
    comms.pop()
    del comm
    gc.collect()
    assert [each.gone for each in made] == ["", "destroyed"], "who lets a communicator go frees it"
    nccl.failed = True
    thread.poll()
    assert [each.gone for each in made] == ["aborted", "destroyed"]
    assert thread._watchdogs == [comms[0].device.watchdog]


def test_a_communicator_can_be_freed(ranks, nccl):
    """Those over which no device array went cost nothing, and have nothing to free."""

    def body(comm):
        twin, idle = comm.duplicate(), comm.duplicate()
        x = sys.modules["cupy"].ones(3)
        twin.allreduce(x)
        made = twin.device.watchdog.made
        for unused in (twin, idle):
            unused.free()
        comm.allreduce(x)
        return made.gone, comm.device.watchdog.made.gone, idle.device.watchdog.made

    assert ranks.run(body, wrap=lambda comm: comm) == [("destroyed", "", None)] * ranks.size


def test_arrays_of_another_gpu_are_refused(ranks):
    """One communicator has one GPU a rank, on which NCCL would look for memory of the other."""

    def body(comm):
        comm.allreduce(sys.modules["cupy"].ones(3))
        with sys.modules["cupy"].cuda.Device(1):
            with pytest.raises(ValueError, match="send must be on device 0, as the first array was, got 1"):
                comm.allreduce(sys.modules["cupy"].ones(3))

    ranks.run(body, wrap=lambda comm: comm)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() == 0, reason="needs CuPy and a CUDA device")
def test_one_rank_for_real():
    """Every call, NCCL's collectives of one rank among them; with one rank there is nobody to send to."""
    import cupy

    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy finds no NCCL")
    comm = NcclComm(NullComm())
    assert_as_in_a_world(SimpleNamespace(size=1, run=lambda fn: [fn(comm)]), OnDevice)
    total = SparseAllreduce(1000, k=40, comm=comm).step(cupy.arange(1000, dtype=np.float32))
    assert total.indices.get().tolist() == list(range(960, 1000))
    comm.free()


def test_transports_have_names(nccl):
    nccl.over(NullComm())
    made = as_comm("nccl")
    assert isinstance(made, NcclComm) and as_comm("nccl") is made
    assert as_comm("mpi") is as_comm(None)
    with pytest.raises(ValueError, match="comm must be 'mpi' or 'nccl' by name, got 'gloo'"):
        as_comm("gloo")
