"""The transport over torch.distributed: the bodies of other tests under torchrun, and what only process groups have."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.counting import REDUCIBLE
from sparse_mpi.comm.world import World
from sparse_mpi.sparse import Layout

from ..algorithms.conformance import dense_of, same_bytes
from ..launch import launch
from ..prefork import torchrun

dist = pytest.importorskip("torch.distributed")
process_group = pytest.importorskip("sparse_mpi.comm.process_group")

RANKS = 3
CONFORMANCE = [f"tests/comm/test_{name}.py" for name in ("comm", "counting", "split", "process_group")]
HARNESS = "tests.comm.process_group_harness"
IN_JOB = """
import numpy as np, torch.distributed as dist
from sparse_mpi.comm import as_comm

dist.init_process_group("gloo")
comm = as_comm(dist.group.WORLD)
assert as_comm(dist.group.WORLD) is comm and comm.size == 3
ends = dist.new_group([0, 2])
if comm.rank != 1:
    pair = as_comm(ends)
    assert (pair.rank, pair.size) == (comm.rank // 2, 2) and pair.allgather(np.array(comm.rank)).tolist() == [0, 2]
    assert pair.bcast(np.full(2 + comm.rank, comm.rank), root=1).tolist() == [2] * 4
    assert pair.sendrecv(np.arange(3) + comm.rank, 1 - pair.rank, 1 - pair.rank)[0] == 2 - comm.rank
    clash = pair.duplicate()
    try:
        clash.sendrecv(np.zeros(3, "int32" if pair.rank else "float64"), 1 - pair.rank, 1 - pair.rank)
    except TypeError as error:
        assert "send must have rows of" in str(error) and f"bytes on rank {1 - pair.rank} too" in str(error)
    else:
        raise AssertionError("rows of another size were taken")
    clash = pair.duplicate()
    try:
        clash.alltoallv(np.zeros(3), [1 + pair.rank, 2 - pair.rank], [1, 1])
    except ValueError as error:
        assert f"expected[{1 - pair.rank}] must be what rank {1 - pair.rank} sends, got 1" in str(error)
    else:
        raise AssertionError("more rows than expected were taken")
    print("met\\n", end="", flush=True)  # in one write: two ranks share the pipe
comm.barrier()
try:
    if comm.rank == 1:
        raise ArithmeticError("gradient lost")
    comm.barrier()
except ArithmeticError as error:
    comm.job.abort(error)
"""


@pytest.mark.jobs
def test_the_bodies_of_other_tests_under_torchrun():
    done = launch(None, *torchrun(RANKS, "-m", "pytest", "-p", HARNESS, "-q", "-rf", *CONFORMANCE))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.count(" passed") == RANKS


@pytest.mark.jobs
def test_subgroups_mismatches_and_the_end_of_a_job():
    done = launch(None, *torchrun(RANKS, "-c", IN_JOB))
    assert done.returncode != 0 and done.stdout.split() == ["met", "met"], done.stderr
    assert "rank 1 of 3 aborts the job" in done.stderr and "ArithmeticError: gradient lost" in done.stderr


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("dtype", sorted({dtype.name for dtype in REDUCIBLE}))
def test_every_type_is_reduced_to_its_ends(ranks, dtype):
    """Sums that wrap around and maxima of what is large without a sign; gloo knows no unsigned ones but bytes."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        own = [np.array([0.5, -1.5, np.finfo(kind).max / 64], kind) * rank for rank in range(ranks.size)]
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        own = [np.array([high, low, rank, high - rank, low + rank], kind) for rank in range(ranks.size)]
    for total, largest in ranks.run(lambda comm: [comm.allreduce(own[comm.rank], op) for op in ("sum", "max")]):
        assert total.dtype == largest.dtype == kind
        np.testing.assert_array_equal(total, np.sum(own, axis=0, dtype=kind))
        np.testing.assert_array_equal(largest, np.max(own, axis=0))


def test_read_only_arrays_are_sent(ranks):
    def body(comm):
        send = np.broadcast_to(np.arange(2.0), (2, 2))[:1]
        send.flags.writeable = False
        return comm.allgatherv(send)[0], comm.allreduce(send), comm.bcast(send)

    for gathered, total, came in ranks.run(body):
        np.testing.assert_array_equal(gathered, [[0, 1]] * ranks.size)
        np.testing.assert_array_equal(total, [[0, ranks.size]])
        np.testing.assert_array_equal(came, [[0, 1]])


@pytest.mark.parametrize("name", ["oktopk", "topka", "gtopk", "adtopk", "dense"])
@pytest.mark.ranks(RANKS)
@pytest.mark.against_world
def test_a_step_costs_and_gives_what_it_does_in_process(ranks, name):
    """To the bit where messages are only moved; dense sums have the order of the library that makes them."""

    layout = Layout.of([(20, 25), (500,)])

    def body(comm):
        reducer = SparseAllreduce(layout, k=40, comm=comm, algorithm=name)
        steps = []
        for step in range(4):
            gradient = np.random.default_rng([step, comm.rank]).standard_normal(1000).astype(np.float32)
            total = reducer.step(gradient, check=True)
            traffic = reducer.report.traffic
            steps.append((total, (traffic.sent, traffic.received, traffic.messages, traffic.control)))
        return steps

    for there, here in zip(ranks.run(body), World(ranks.size).run(body), strict=True):
        for (total, traffic), (expected, counted) in zip(there, here, strict=True):
            assert traffic == counted
            if not ALGORITHMS[name]().exact_order(layout, 40):
                np.testing.assert_allclose(dense_of(total), dense_of(expected), rtol=1e-5, atol=1e-6)
            else:
                assert same_bytes(total, expected)


@pytest.fixture
def alone():
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_wrapper_is_kept_as_long_as_its_group(alone):
    comm = as_comm(alone)
    assert process_group.wrapped() is comm and (comm.rank, comm.size, comm.job.staged) == (0, 1, True)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    fresh = process_group.wrapped()
    assert fresh is not comm and fresh.duplicate() is not fresh
    fresh.barrier()


def test_what_is_no_process_group_is_refused(alone):
    with pytest.raises(TypeError, match="group must be a torch.distributed process group .*, got 'world'"):
        process_group.ProcessGroupComm("world")
    with pytest.raises(TypeError, match="that this process is in"):
        process_group.ProcessGroupComm(dist.GroupMember.NON_GROUP_MEMBER)


def test_torch_distributed_must_be_initialised_first():
    if dist.is_initialized():
        pytest.skip("it is, by the harness")
    with pytest.raises(RuntimeError, match=r"must be initialised .* call torch.distributed.init_process_group"):
        process_group.ProcessGroupComm()
