"""The transport over torch.distributed: the bodies of other tests under torchrun, and what only process groups have."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.comm.counting import REDUCIBLE

from ..algorithms.conformance import assert_same_as_in_world, train
from ..algorithms.test_algorithms import DYADIC
from ..launch import launch
from ..prefork import torchrun
from ..tiers import COMPARED
from .laws import assert_as_in_a_world, assert_reduced_to_its_ends

dist = pytest.importorskip("torch.distributed")
process_group = pytest.importorskip("sparse_mpi.comm.process_group")

RANKS = 3
TYPES = sorted({dtype.name for dtype in REDUCIBLE})
IN_JOB = """
import time
import numpy as np, pytest, torch.distributed as dist
from sparse_mpi.comm import as_comm

dist.init_process_group("gloo")
comm = as_comm(dist.group.WORLD)
assert as_comm(dist.group.WORLD) is comm and comm.size == 3
store, gloo = dist.distributed_c10d._get_default_store(), dist.ProcessGroupGloo

def slow(*given):
    group = gloo(*given)
    time.sleep(0.3)
    store.set("a rank is late", "")
    return group

if comm.rank == 1:
    dist.ProcessGroupGloo = slow
comm.duplicate()  # which goes at once: a rank that still connected to it would fail
assert store.check(["a rank is late"])
ends = dist.new_group([0, 2])
if comm.rank != 1:
    pair, clashing = as_comm(ends), [as_comm(ends).duplicate() for _ in range(2)]
    peer = 1 - pair.rank
    with pytest.raises(TypeError, match=f"send must have rows of .* bytes on rank {peer} too"):
        clashing[0].sendrecv(np.zeros(3, "int32" if pair.rank else "float64"), peer, peer)
    with pytest.raises(ValueError, match=f"expected.{peer}. must be what rank {peer} sends, got 1"):
        clashing[1].alltoallv(np.zeros(3), [1 + pair.rank, 2 - pair.rank], [1, 1])
    print("met\\n", end="", flush=True)  # in one write: two ranks share the pipe
comm.barrier()
try:
    if comm.rank == 1:
        raise ArithmeticError("gradient lost")
    comm.barrier()
except ArithmeticError as error:
    comm.job.abort(error)
"""


BODIES = """
from types import SimpleNamespace
import torch.distributed as dist
from sparse_mpi.comm import as_comm
from tests.comm import test_process_group as bodies

dist.init_process_group("gloo")
comm = as_comm(dist.group.WORLD)

def run(fn):
    results = [None] * comm.size
    dist.all_gather_object(results, fn(comm))
    return results

ranks = SimpleNamespace(size=comm.size, run=run)
bodies.test_every_call_returns_and_counts_what_it_does_in_a_world(ranks)
for dtype in bodies.TYPES:
    bodies.test_every_type_is_reduced_to_its_ends(ranks, dtype)
bodies.test_few_rows_arrive_behind_their_head_and_many_by_themselves(ranks)
bodies.test_read_only_arrays_are_sent(ranks)
for name in bodies.ALGORITHMS:
    bodies.test_a_step_costs_and_gives_what_it_does_in_process(ranks, name)
print("held\\n", end="", flush=True)
"""


@pytest.mark.jobs
def test_bodies_of_this_file_under_torchrun():
    done = launch(None, *torchrun(RANKS, "-c", BODIES), seconds=240)
    assert done.returncode == 0 and done.stdout.split() == ["held"] * RANKS, done.stderr


def test_every_call_returns_and_counts_what_it_does_in_a_world(ranks):
    assert_as_in_a_world(ranks)


IN_MESH = r"""
import numpy as np, pytest, torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
import sparse_mpi
from sparse_mpi.comm import as_comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.optim import DistributedOptimizer, broadcast_parameters

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
lane = [rank % 2, rank % 2 + 2]
lanes = [dist.new_group([0, 2]), dist.new_group([1, 3])]
groups = {"mesh": mesh["replicate"], "group": lanes[rank % 2]}

def drawn(rank, step):
    return np.random.default_rng([rank, step]).standard_normal(400).astype(np.float32)

def work(comm, rank):
    found = [as_comm(comm).size, as_comm(comm).rank]
    once = sparse_mpi.sparse_allreduce(drawn(rank, 0), k=9, comm=comm)
    reducer = sparse_mpi.SparseAllreduce(400, k=9, comm=comm)
    keys, values = sparse_mpi.allreduce((np.arange(rank, rank + 5), np.ones(5)), comm=comm)
    found += [reducer.step(drawn(rank, step)).to_dense().tobytes() for step in range(3)]
    found += [once.total.to_dense().tobytes(), keys.tobytes(), values.tobytes()]
    torch.manual_seed(rank)
    model = torch.nn.Linear(30, 20)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), density=0.1, comm=comm)
    broadcast_parameters(model.state_dict(), comm=comm)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.from_numpy(drawn(rank, step)[:30])).square().sum().backward()
        optimizer.step()
    return found + [parameter.detach().numpy().tobytes() for parameter in model.parameters()]

expected = sparse_mpi.World(2).run(lambda comm: work(comm, lane[comm.rank]))[lane.index(rank)]
for comm in groups.values():
    assert as_comm(comm) is as_comm(comm) and work(comm, rank) == expected
    group = comm if isinstance(comm, dist.ProcessGroup) else comm.get_group()
    net = torch.nn.Linear(30, 20)
    model = DistributedDataParallel(net, process_group=group)
    state = SparseState(net.named_parameters(), density=0.1, comm=comm)
    model.register_comm_hook(state, sparse_hook)
    for step in range(5):
        model(torch.from_numpy(drawn(rank, step)[:30])).square().sum().backward()
    gradients = as_comm(comm).allgather(net.weight.grad.numpy())
    assert state.comm.size == 2 and state.report.traffic.sent > 0 and (gradients[0] == gradients[1]).all()

for make in (as_comm, lambda comm: sparse_mpi.SparseAllreduce(9, k=1, comm=comm)):
    with pytest.raises(ValueError, match=r"one dimension, got .*; pick one, for example mesh\['replicate'"):
        make(mesh)
    with pytest.raises(ValueError, match=r"one dimension, got .*; pick one, for example mesh.get_group\(0\)"):
        make(init_device_mesh("cpu", (2, 2)))
some = DeviceMesh("cpu", [0, 2])
if rank % 2:
    with pytest.raises(TypeError, match="process group that this process is in"):
        as_comm(some)
else:
    assert as_comm(some).size == 2
# Only one rank has tensors without values: all are told.
with pytest.raises((TypeError, ValueError), match="got one on meta"):
    broadcast_parameters(torch.nn.Linear(2, 2, device="meta" if rank == 1 else "cpu").state_dict())
with pytest.raises((TypeError, ValueError), match="must be on the CPU or a CUDA device, got meta"):
    sparse_mpi.sparse_allreduce(torch.zeros(9, device="meta" if rank == 1 else "cpu"), k=1)
dist.barrier()
dist.destroy_process_group()
print("met\n", end="", flush=True)
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("-m sparse_mpi bench steps --n 2000 --steps 1 --algorithms dense elect", ""),
        pytest.param("-m sparse_mpi bench sparse", "compares with mpi4py, whose", marks=pytest.mark.full("a refusal")),
    ],
)
def test_commands_run_or_say_why_not(command, says):
    done = launch(None, *torchrun(RANKS, *command.split()))
    assert says in done.stderr and (done.returncode != 0) == bool(says), done.stderr
    assert says or "n = 2,000, density 0.01, P = 3; " in done.stdout


@pytest.mark.jobs
def test_dimensions_of_meshes_and_new_groups_are_taken_everywhere():
    """What the ranks of each lane of a 2 x 2 mesh compute is to the bit what a World of two computes."""
    done = launch(None, *torchrun(4, "-c", IN_MESH))
    assert done.returncode == 0 and done.stdout.split() == ["met"] * 4, done.stderr


@pytest.mark.jobs
def test_subgroups_mismatches_and_the_end_of_a_job():
    done = launch(None, *torchrun(RANKS, "-c", IN_JOB))
    assert done.returncode != 0 and done.stdout.split() == ["met", "met"], done.stderr
    assert "rank 1 of 3 aborts the job" in done.stderr and "ArithmeticError: gradient lost" in done.stderr


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_reduced_to_its_ends(ranks, dtype):
    """Sums that wrap around and maxima of what is large without a sign; gloo knows no unsigned ones but bytes."""
    assert_reduced_to_its_ends(ranks, dtype)
    assert_reduced_to_its_ends(ranks, dtype, process_group.GATHERED)  # by gloo


def test_few_rows_arrive_behind_their_head_and_many_by_themselves(ranks):
    """From each rank other numbers of them, around the number from which on they are many."""
    size, most = ranks.size, process_group.FEW // 8
    each = [[most - 1 + (rank + peer) % 3 for peer in range(size)] for rank in range(size)]

    def body(comm):
        send, counts = np.repeat(10.0 * comm.rank + np.arange(size), each[comm.rank]), each[comm.rank]
        part, next_rank, last = send[: counts[0]], (comm.rank + 1) % size, (comm.rank - 1) % size
        known, told = comm.alltoallv(send, counts, counts), comm.alltoallv(send, counts)
        return known[0], told[0], comm.allgatherv(part)[0], comm.sendrecv(part, next_rank, last)

    for rank, (known, told, gathered, came) in enumerate(ranks.run(body)):
        np.testing.assert_array_equal(known, np.repeat(10.0 * np.arange(size) + rank, each[rank]))
        np.testing.assert_array_equal(told, known)
        np.testing.assert_array_equal(gathered, np.repeat(10.0 * np.arange(size), each[0]))
        np.testing.assert_array_equal(came, np.full(each[rank - 1][0], 10.0 * ((rank - 1) % size)))


def test_read_only_arrays_are_sent(ranks):
    def body(comm):
        send = np.broadcast_to(np.arange(2.0), (2, 2))[:1]
        send.flags.writeable = False
        return comm.allgatherv(send)[0], comm.allreduce(send), comm.bcast(send)

    for gathered, total, came in ranks.run(body):
        np.testing.assert_array_equal(gathered, [[0, 1]] * ranks.size)
        np.testing.assert_array_equal(total, [[0, ranks.size]])
        np.testing.assert_array_equal(came, [[0, 1]])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.ranks(*COMPARED)
@pytest.mark.against_world
def test_a_step_costs_and_gives_what_it_does_in_process(ranks, name):
    assert_same_as_in_world(ranks, lambda comm: train(comm, name, DYADIC, np.float32, 4))


@pytest.fixture
def alone():
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
    with pytest.raises(TypeError, match="of which this process is no rank"):
        as_comm(dist.GroupMember.NON_GROUP_MEMBER)


def test_a_restart_by_torchrun_at_the_old_store_is_refused(monkeypatch):
    """There gloo would look for processes that have ended."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(RuntimeError, match="shared in restart 2; export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before"):
        comm_of_job()


def test_torch_distributed_must_be_initialised_first():
    with pytest.raises(RuntimeError, match=r"must be initialised .* call torch.distributed.init_process_group"):
        process_group.ProcessGroupComm()
