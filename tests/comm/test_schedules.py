"""Schedules of `World`: whoever goes on first, and whenever messages come, the bytes are those of the fixed order.

A seed that finds another result is in the assertion, and kept, see `tests/schedules.py`. What it drew is drawn again by
``World(ranks, schedule=seed)``.

The laws are those of all who use the transport: reducers and keyed collectives, each by itself and in
the background; optimizers, DDP's hook and local steps; teams that lose ranks, and their spares. What an order could
change is the sums, the residuals, the parameters and the bytes that each rank counted, all of which are compared.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce, World, collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS as WAYS
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.base import RankFailure
from sparse_mpi.comm.world import DeadlockError, MismatchError
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.optim import DistributedOptimizer

from ..fault_tolerance import survivors
from ..gradients import gradient
from ..kernels.on_cuda import bytes_of
from ..training.loops import made, net, residuals, steps, weights

SHAPES = [(12, 10), (10,), (7, 5, 3), (7,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
ONE = np.ones(1)


def assert_same_in_every_order(body, ranks, schedules, around=lambda seed: nullcontext(), **options):
    """Assert that ``body`` returns on all ranks what it returns in the fixed order, under each of these schedules.

    What else is to follow a seed does so within ``around(seed)``.
    """
    expected = World(ranks, **options).run(body)
    assert [rank for rank in range(ranks) if expected[rank] is None] == list(options.get("leave", []))

    def law(seed):
        with around(seed):
            found = World(ranks, **options, schedule=seed).run(body)
        if others := [rank for rank in range(ranks) if found[rank] != expected[rank]]:
            raise AssertionError(f"another result on ranks {others}")

    schedules.hold(law, lambda seed: f"World({ranks}, schedule={seed}, **{options})")


def counted(comm):
    traffic = comm.traffic
    return traffic.sent, traffic.received, traffic.messages, traffic.control


def lost(comm, algorithm, traffic=False):
    """Totals, residual and departures of an elastic reducer, which may lose ranks."""
    found = survivors.facts(survivors.trained(comm, algorithm, steps=5, copy_every=2))
    return found, counted(comm) if traffic else None


def spared(comm):
    """What a rank of a team has seen, or a spare that takes the place of a lost one."""
    first, totals, residual, members, departures = survivors.relieved(comm, 1)
    return first, {n: x.tobytes() for n, x in totals.items()}, residual.tobytes(), members, [d[:3] for d in departures]


def of_team(comm, user, traffic=False):
    """What a ``user`` of a team returns, which may lose ranks while it works in the background."""
    team = Team(comm)
    *found, counts = user(comm, ranks=team, copy_every=2)
    return found, [departure[:3] for departure in team.departures], counts if traffic else None


def trained(comm, device="cpu", ranks=None, **options):
    """The parameters of a small model after some steps of an optimizer, and its traffic."""
    model = net(0, (8, 9, 3)).to(device)
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = DistributedOptimizer(
        plain, model.named_parameters(), density=0.2, bucket_cap_mb=2e-4, comm=ranks or comm, **options
    )
    for step in range(3):
        optimizer.zero_grad()
        x = torch.from_numpy(gradient(comm.rank, step, 32).reshape(4, 8)).to(device)
        model(x).pow(2).sum().backward()
        optimizer.step()
    return [p.detach().cpu().numpy().tobytes() for p in model.parameters()], counted(comm)


def summed(comm, way):
    """The sum of sparse data with some keys in common."""
    rng = np.random.default_rng(comm.rank)
    keys = rng.choice(300, 40 + 7 * comm.rank, replace=False)
    found = collectives.allreduce((keys, rng.standard_normal(len(keys))), comm=comm, algorithm=way)
    return [part.tobytes() for part in found], counted(comm)


def rounds(comm):
    """Results of keyed collectives, persistent and others, that wait for a reducer of the same communicator."""
    rng = np.random.default_rng(comm.rank)
    keys = rng.choice(300, 40 + 7 * comm.rank, replace=False)
    request = collectives.allreduce_init(keys, rng.integers(0, 300, 30), comm=comm)
    reducer = SparseAllreduce(SHAPES, density=0.1, comm=comm, algorithm="oktopk")
    found = []
    for step in range(2):
        handle = reducer.start(gradient(comm.rank, step, SIZE))
        request.start(rng.standard_normal(len(keys)))
        matrix = pytest.importorskip("scipy.sparse").random(20, 30, 0.2, "csr", np.float32, rng)
        words = Counter(f"{word}" for word in rng.integers(0, 50, 60))
        for call in (collectives.allreduce, collectives.reduce_scatter, collectives.reduce):
            total, counts = call(matrix, comm=comm), call(words, comm=comm)
            if total is not None:  # on the root of a reduce
                found += [total.indices.tobytes(), total.data.tobytes(), *counts.items()]
        found += [[*part.items()] for part in collectives.allgather(words, comm=comm)]
        found += bytes_of(request.wait(), handle.wait())
    return found, reducer.residual.tobytes(), counted(comm)


def bucket_of(buffer, parameters, number=0, last=True):
    """A bucket as DDP gives it to a hook."""
    told = {"index": number, "buffer": buffer.detach(), "parameters": parameters, "is_last": last}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in told.items()})


def hooked(comm, algorithm, device="cpu"):
    """Means and residuals of DDP's hook, whose buckets DDP builds anew after the first step; one is a sparse table."""
    named = {name: torch.zeros(shape, device=device) for name, shape in zip("abcde", [*SHAPES, (9, 2)], strict=True)}
    state = SparseState(named.items(), density=0.2, comm=comm, algorithm=algorithm, dense_steps=1)
    means = []
    for step in range(3):
        futures = []
        cuts = ["ab", "cd", "e"] if step == 0 else ["d", "e", "cb", "a"]
        for number, names in enumerate(cuts):
            flat = gradient(comm.rank, step, sum(named[name].numel() for name in names), seed=number)
            buffer = torch.from_numpy(flat).to(device)
            if names == "e":
                where, rows = [[comm.rank, 7, step]], buffer.view(9, 2)[:3]
                buffer = torch.sparse_coo_tensor(where, rows, (9, 2), check_invariants=True)
            parameters = [named[name] for name in names]
            futures.append(sparse_hook(state, bucket_of(buffer, parameters, number, names == cuts[-1])))
        means += [future.value().to_dense().cpu().numpy().tobytes() for future in futures]
    owed = {name: residual.tobytes() for name, residual in state.residuals().items()}
    return means, owed, counted(state.comm)


def locally(comm, ranks=None, **options):
    """Parameters and residuals after local steps, beside which outer gradients are reduced."""
    schedule = {"fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": None}
    replica = made(ranks or comm, 4, density=0.2, **schedule, **options)
    steps(replica, comm.rank, range(7))
    replica.local.synchronize()
    return weights(replica.model).tobytes(), residuals(replica.local).tobytes(), counted(replica.local.comm)


# The laws


@pytest.mark.parametrize("way", sorted(WAYS))
def test_sparse_collectives_have_the_same_bytes(schedules, way):
    assert_same_in_every_order(partial(summed, way=way), 5, schedules)


def test_keyed_collectives_that_wait_their_turn_have_the_same_bytes(schedules):
    assert_same_in_every_order(rounds, 3, schedules)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect"])
def test_buckets_of_a_hook_have_the_same_bytes(schedules, algorithm):
    assert_same_in_every_order(partial(hooked, algorithm=algorithm), 3, schedules)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect"])
def test_local_steps_have_the_same_bytes(schedules, algorithm):
    assert_same_in_every_order(partial(locally, algorithm=algorithm), 3, schedules)


@pytest.mark.parametrize("algorithm", ["oktopk", "elect"])
def test_optimizers_have_the_same_bytes(schedules, algorithm):
    assert_same_in_every_order(partial(trained, algorithm=algorithm), 3, schedules)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_fails_in_the_background_is_lost_with_all_its_threads(seed, waits):
    def body(comm):
        thread = progress_thread_of(comm.duplicate())
        handles = [thread.start(work) for work in (comm.job.begin_reduction, comm.barrier)]
        if waits:
            with pytest.raises(RankFailure, match="rank 1 of 3"):
                handles[1].wait()
        return comm.rank

    assert World(3, leave={1: 0}, schedule=seed).run(body) == [0, None, 2]


def test_work_in_the_background_takes_turns():
    def body(comm):
        handles = [progress_thread_of(own).start(own.barrier) for own in (comm.duplicate(), comm.duplicate())]
        done = [handle.done() for handle in handles]
        return done, [handle.wait() for handle in handles]

    assert World(3).run(body) == [([True, True], [None, None])] * 3
    assert World(3, schedule=1).run(body) == [([False, False], [None, None])] * 3


@pytest.mark.parametrize("when", [2, (2, 0), (2, 2)], ids=str)
@pytest.mark.parametrize("algorithm", ["oktopk", "elect", "gtopk"])
def test_a_loss_leaves_the_same_bytes(schedules, algorithm, when):
    """But what ranks have sent in a step before they learn that one was lost within it depends on the order."""
    body = partial(lost, algorithm=algorithm, traffic=when == 2)
    assert_same_in_every_order(body, 4, schedules, leave={2: when})


@pytest.mark.parametrize("when", [2, (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("user", [trained, locally])
def test_a_loss_in_the_background_leaves_the_same_bytes(schedules, user, when):
    body = partial(of_team, user=partial(user, algorithm="oktopk"), traffic=when == 2)
    assert_same_in_every_order(body, 3, schedules, leave={1: when})


def test_a_spare_takes_a_place_with_the_same_bytes(schedules):
    assert_same_in_every_order(spared, 4, schedules, leave={1: 6})


# What a schedule is


def order_of(**options):
    seen = []

    def body(comm):
        for _ in range(3):
            seen.append(comm.rank)
            comm.barrier()

    World(4, **options).run(body)
    return seen


def test_a_seed_draws_the_same_order_again_and_others_draw_others():
    orders = [order_of(schedule=seed) for seed in range(20)]
    assert orders == [order_of(schedule=seed) for seed in range(20)]
    assert len({*map(tuple, orders)}) == 20
    assert order_of() == order_of(schedule=None) == [0, 1, 2, 3, 3, 0, 1, 2, 2, 0, 1, 3]


@pytest.mark.parametrize("seed", range(5))
def test_deadlocks_and_mismatches_are_named(seed):
    def absent(comm):
        if comm.rank != 1:
            comm.allreduce(ONE)

    def other(comm):
        return comm.barrier() if comm.rank == 1 else comm.allreduce(ONE)

    def behind(comm):
        return progress_thread_of(comm).start(comm.barrier).wait() if comm.rank != 1 else None

    with pytest.raises(DeadlockError, match=r"ranks 0, 2 waiting for rank 1 in allreduce.*rank 1 returned"):
        World(3, schedule=seed).run(absent)
    with pytest.raises(DeadlockError, match=r"rank 0 waiting for a message from rank 2"):
        World(3, schedule=seed).run(lambda comm: comm.sendrecv(ONE, None, 2) if comm.rank == 0 else None)
    with pytest.raises(MismatchError, match="called barrier"):
        World(3, schedule=seed).run(other)
    with pytest.raises(
        DeadlockError, match=r"ranks 0, 2 waiting for work in the.*ranks 0, 2 waiting for rank 1 in bar"
    ):
        World(3, schedule=seed).run(behind)
