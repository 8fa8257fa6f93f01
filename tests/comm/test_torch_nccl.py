"""Device arrays over the NCCL of torch's groups: pretended between the ranks of a `World`, in a job, and for real."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.arrays import to_host
from sparse_mpi.comm import as_comm, process_group
from sparse_mpi.comm.counting import REDUCIBLE
from sparse_mpi.comm.process_group import FEW, ProcessGroupComm
from sparse_mpi.comm.world import World
from sparse_mpi.sparse import Layout

from ..fakes import fake_torch_nccl
from ..launch import launch
from ..prefork import copied
from .laws import assert_as_in_a_world, assert_reduced_to_its_ends, assert_rows_of_another_size_are_refused
from .on_device import OnDevice
from .test_stream_schedules import assert_same_in_every_order, reduced

pytestmark = [pytest.mark.ranks(1, 2, 3, 4), pytest.mark.in_world]
NCCL, GLOO = "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"
LAYOUT = Layout.of([(20, 25), (500,)])


@pytest.fixture
def torch_nccl(device, monkeypatch):
    return fake_torch_nccl.install(monkeypatch)


class GroupRanks:
    """What the fixture ``ranks`` gives, over process groups whose backends are those of ``configs``, rank by rank."""

    def __init__(self, ranks, torch_nccl) -> None:
        self.size, self._ranks, self._dist = ranks.size, ranks, torch_nccl

    def run(self, fn, wrap=OnDevice, configs=(NCCL,)):
        def body(comm):
            self._dist.over(comm, configs[comm.rank % len(configs)])
            return fn(wrap(ProcessGroupComm()))

        return self._ranks.run(body)


def bare(comm):
    return comm


@pytest.fixture
def ranks(ranks, torch_nccl):
    return GroupRanks(ranks, torch_nccl)


def test_every_call_returns_and_counts_what_it_does_in_a_world(ranks):
    """On parts and duplicates too; the pretended NCCL is strict about lengths, types and streams."""
    assert_as_in_a_world(ranks)


@pytest.mark.parametrize("dtype", sorted({dtype.name for dtype in REDUCIBLE}))
def test_every_type_is_reduced_to_its_ends(ranks, dtype):
    """Torch's NCCL knows no 16-bit integers, and none without a sign but bytes."""
    assert_reduced_to_its_ends(ranks, dtype)


def test_what_goes_over_nccl_and_what_over_gloo(ranks, torch_nccl, device):
    """With known counts nothing goes over gloo, nothing crosses the bus and nobody waits; host arrays go over gloo."""
    size = ranks.size

    def body(comm):
        own = sys.modules["cupy"].asarray(np.arange(size * 4, dtype=np.float32).reshape(size, 4) + comm.rank)
        each, uneven = np.ones(size, int), np.arange(size)
        comm.allreduce(own)
        for send in (own.get(), own):
            comm.barrier()
            before = len(torch_nccl.calls), len(device.copies), len(device.synchronised), len(gloo_calls)
            comm.alltoallv(send, each, each)
            comm.allgatherv(send, each * size)
            comm.allgatherv(send[: comm.rank], uneven)
            comm.allgather(send)
            comm.allreduce(send, "max")
            now = len(torch_nccl.calls), len(device.copies), len(device.synchronised), len(gloo_calls)
            if send is own:
                assert now[1:] == before[1:]
        comm.barrier()
        comm.alltoallv(own, each)
        comm.bcast(own)
        return comm.job.staged, comm.job.concurrent, len(device.copies) == now[1], len(device.synchronised) == now[2]

    gloo_calls = torch_nccl.gloo
    assert ranks.run(body, wrap=bare) == [(False, False, True, True)] * size
    names = set(torch_nccl.calls)
    assert names == {"all_reduce", "all_to_all_single", "all_gather_into_tensor", "broadcast"} | (
        {"all_gather"} if size > 1 else set()
    )


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("rows", "messages"), [(FEW // 8, 1), (FEW // 8 + 1, 2)])
def test_few_rows_are_in_the_message_of_their_head(ranks, torch_nccl, rows, messages):
    """And where all ranks have as many, or a few numbers to add up, there is no head."""

    def body(comm):
        send, each, sent = np.zeros(3 * rows), np.full(3, rows), []
        calls = (
            lambda: comm.alltoallv(send, each),
            lambda: comm.alltoallv(send, each, each),
            lambda: comm.allgatherv(send[:rows]),
            lambda: comm.allgatherv(send[:rows], each),
            lambda: comm.allgather(send),
            lambda: comm.allreduce(each, "max"),
        )
        for call in calls:
            comm.barrier()
            before = len(torch_nccl.gloo)
            comm.barrier()
            call()
            comm.barrier()
            sent.append(torch_nccl.gloo[before:])
        return sent

    each = 3 * 2 * messages
    for sent in ranks.run(body, wrap=bare):
        assert [calls.count("send") for calls in sent] == [each] * 3 + [6] * 3
        assert {call for calls in sent for call in calls} == {"send"}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ["oktopk", "elect"])
def test_hosts_of_two_ranks_sum_over_nccl_as_they_do_in_memory(ranks, device, monkeypatch, name):
    """No vector crosses the bus: less does than a tenth of it."""
    monkeypatch.setattr(ProcessGroupComm, "_hosts", lambda comm: np.array(comm._ranks) // 2)
    n, put = 20_000, sys.modules["cupy"].asarray

    def body(comm, put=put):
        reducer, totals = SparseAllreduce(n, k=200, comm=comm, algorithm=name), []
        for step in range(3):
            gradient = np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32)
            before = len(device.copies)
            total = reducer.step(put(gradient))
            assert all(copy.bytes < 4 * n / 10 for copy in device.copies[before:] if copy.to == "host")
            totals += [to_host(part).tobytes() for part in total[:2]]
        return totals

    assert ranks.run(body, wrap=bare) == World(4, 2).run(lambda comm: body(comm, np.asarray))


def test_parts_have_groups_of_their_own_and_duplicates_share_one(ranks, torch_nccl):
    def body(comm):
        twin, whole, part = comm.duplicate(), comm.split(0), comm.split(comm.rank % 2)
        assert as_comm(comm) is comm and part.traffic is comm.traffic and twin.traffic is not comm.traffic
        shared = twin.device is comm.device is whole.device, (part.device is comm.device) == (comm.size < 2)
        return [made.job.staged for made in (twin, whole, part)], all(shared), part.device._ranks

    expected = [[rank for rank in range(ranks.size) if rank % 2 == own % 2] for own in range(ranks.size)]
    assert ranks.run(body, wrap=bare) == [([False] * 3, True, members) for members in expected]


@pytest.mark.ranks(1)
def test_a_group_that_is_gone_is_not_taken_for_the_default_one(ranks, torch_nccl):
    def body(comm):
        torch_nccl.over(World(1).run(bare)[0])
        gc.collect()
        with pytest.raises(RuntimeError, match="process group of comm must last while comm is used, it has been destr"):
            comm.allreduce(sys.modules["cupy"].asarray(np.ones(3)))

    ranks.run(body, wrap=bare)


@pytest.mark.ranks(4)
def test_parts_of_a_part_are_staged_where_torch_would_split_the_whole(ranks, torch_nccl):
    """With a ``device_id`` torch makes groups by a call of all ranks of the job; this says so once."""

    def body(comm):
        torch_nccl.default.bound_device_id = 0
        pair = comm.split(comm.rank // 2)
        alone = pair.split(pair.rank)
        halves = pair.split(0)
        return pair.job.staged, alone.job.staged, halves.job.staged

    assert ranks.run(body, wrap=bare) == [(False, True, False)] * 4


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("configs", "who"), [((GLOO,), ""), ((NCCL, GLOO, NCCL), " on rank 1"), ((GLOO, NCCL, GLOO), " on ranks 0, 2")]
)
def test_without_nccl_on_a_rank_all_are_staged_and_one_says_so(ranks, torch_nccl, device, configs, who):
    """At the first array on a device, once, on rank 0; with what to do."""

    def body(comm):
        assert comm.job.staged and comm.job.concurrent
        comm.allreduce(np.ones(3))
        assert not said
        own = sys.modules["cupy"].asarray(np.arange(3.0))
        return [comm.duplicate().allreduce(own).get().tolist() for _ in range(2)]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert ranks.run(body, wrap=bare, configs=configs) == [[[0, 3, 6]] * 2] * 3
    (one,) = said
    expected = (
        f"gloo carries arrays on GPUs through host memory, since the process group has no NCCL for them{who}; "
        "initialise torch.distributed with init_process_group('cpu:gloo,cuda:nccl') or init_process_group('nccl') "
        "on all ranks"
    )
    assert str(one.message) == expected and not torch_nccl.calls


def test_where_torch_sees_no_gpu_nothing_is_said_of_them(ranks, torch_nccl, monkeypatch):
    """The default of torch names NCCL on machines without a GPU, too: work in the background goes on there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ranks.run(lambda comm: (comm.allreduce(np.ones(2)).tolist(), comm.job[:2]), wrap=bare)
    assert found == [([ranks.size] * 2, (True, True))] * ranks.size


@pytest.mark.ranks(3)
def test_gradients_on_the_host_of_some_ranks_are_refused_on_all(ranks):
    """NCCL would wait for them, and they for gloo."""

    def body(comm):
        reducer, gradient = SparseAllreduce(100, k=4, comm=comm), np.ones(100, np.float32)
        with pytest.raises(ValueError, match=r"same arguments(.|\n)*rank 1: .*device=False"):
            reducer.step(gradient if comm.rank == 1 else sys.modules["cupy"].asarray(gradient))

    ranks.run(body, wrap=bare)


@pytest.mark.ranks(2)
def test_rows_of_another_size_are_refused(ranks):
    assert_rows_of_another_size_are_refused(ranks)


@pytest.mark.ranks(3)
def test_a_message_between_some_ranks_may_be_the_first_on_a_device(ranks):
    """NCCL wants all ranks of a group in its first call on a device: they meet when each has its first array there."""

    def body(comm, number):
        own = np.full(2, comm.rank)
        with sys.modules["cupy"].cuda.Device(number):
            if comm.rank < 2:
                return comm.sendrecv(own, 1 - comm.rank, 1 - comm.rank).tolist()
            return comm.sendrecv(own, None, None)

    assert ranks.run(lambda comm: [body(comm, number) for number in (0, 1)]) == [[[1, 1]] * 2, [[0, 0]] * 2, [None] * 2]


def over(torch_nccl, comm, body, **options):
    torch_nccl.over(comm)
    return body(ProcessGroupComm(), **options)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_bytes_are_the_same_in_every_order_of_streams(torch_nccl, device, schedules, algorithm):
    body = partial(reduced, device=device, algorithm=algorithm)
    assert_same_in_every_order(partial(over, torch_nccl, body=body), 3, schedules.few)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("gpus", "backends"), [(2, NCCL), (1, "gloo")])
def test_programs_take_nccl_where_each_process_has_a_gpu(monkeypatch, gpus, backends):
    made = []
    there = SimpleNamespace(
        is_initialized=lambda: False, is_nccl_available=lambda: True, init_process_group=made.append
    )
    monkeypatch.setattr(process_group, "dist", there)
    monkeypatch.setattr(process_group.atexit, "register", lambda end: end())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    process_group.start_job()
    assert made == [backends]


SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"  # with which NCCL takes several ranks on a GPU, from 2.30 on


def run_job(ranks, *words):
    """Run `torch_nccl_job`, its ranks started as a user does it: whatever torch has loaded is made for the device."""
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words)
    command += ("-m", "tests.comm.torch_nccl_job")
    done = launch(None, *(copied(*command) if words else command), seconds=280)
    lines = [line.rpartition(" (")[0] for line in done.stdout.splitlines() if line.endswith(" s)")]
    cases = ["calls", *ALGORITHMS, "optimizer", "DDP's hook", "FSDP2"]
    assert lines == [f"{case}: agrees" for case in cases] and done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.jobs
@pytest.mark.timeout(300)
def test_a_job_over_nccl_agrees_with_gloo():
    """Processes of torchrun, whose NCCL is pretended: all algorithms, the optimizer, DDP's hook, FSDP2."""
    run_job(2, "-m", "tests.fakes")


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    torch.cuda.device_count() < 2 - (SHARED in os.environ), reason=f"needs two GPUs, or one and {SHARED}"
)
def test_two_ranks_for_real():
    run_job(2)
