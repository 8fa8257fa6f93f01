"""`DistributedOptimizer` with a budget: decisions for all buckets together, dense steps, resuming, bad arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, Layout, World
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.autotune import SETTLED, budget_candidates, fastest_now

from ..training.loops import SMALL, loss_of, weights
from ..training.loops import wide_net as net

GOALS = {
    "rate": {"budget": "20kB/s"},
    "seconds": {"step_seconds": 0.15},
    "total": {"budget": "40kB/20steps"},
    "dense": {"budget": "1GB/step"},
}
every_goal = pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
FEW, FULL = ("rate", "dense"), [pytest.mark.full("how a goal is kept is the same on MPI and on World")]
STEPS = 20
BUCKETS = 4


def made(comm, script, model, goal, **options):
    plain = torch.optim.SGD(model.parameters(), lr=0.02)
    options = {"bucket_cap_mb": SMALL, "feedback": "residual", "momentum": "local"} | options
    optimizer = DistributedOptimizer(plain, model.named_parameters(), comm=comm, **goal, **options)
    script(optimizer.reduction._budget.budget.tracker, comm.rank)
    return optimizer


def steps(comm, model, optimizer, numbers=range(STEPS), check=False):
    decisions = []
    for number in numbers:
        optimizer.reduction.check = check
        optimizer.zero_grad()
        loss_of(model, comm.rank, number).backward()
        optimizer.step()
        decisions.append(optimizer.reduction.decision)
    return decisions, weights(model).tobytes()


@pytest.mark.thin(1)
@every_goal
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"bucket_cap_mb": None}], ids=str)
@pytest.mark.ranks(1, 3)
def test_all_ranks_decide_alike_and_laws_hold(ranks, scripted, goal, options):
    def body(comm):
        model = net()
        return steps(comm, model, made(comm, scripted, model, goal, wire="packed", **options), check=True)

    first, *others = ranks.run(body)
    assert all(other == first for other in others)
    assert len({decision.k for decision in first[0] if decision}) > 3 or ranks.size == 1


@pytest.mark.ranks(3)
def test_steps_become_dense_in_all_buckets(ranks, scripted):
    def body(comm):
        model = net()
        optimizer = made(comm, scripted, model, GOALS["dense"], algorithm="topka")
        decisions, _ = steps(comm, model, optimizer)
        return decisions[-1].dense, [str(algorithm) for algorithm in optimizer.reduction.algorithms]

    assert ranks.run(body) == [(True, ["Dense()"] * BUCKETS)] * ranks.size


@pytest.mark.against_world
@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("goal", [pytest.param(GOALS[name], marks=FULL[name in FEW :]) for name in GOALS], ids=GOALS)
def test_world_equals_mpi(ranks, scripted, goal):
    if goal == GOALS["dense"] and ranks.size > ranks.ordered:
        pytest.skip("MPI and gloo add that many numbers in orders of their own")

    def body(comm):
        model = net()
        return steps(comm, model, made(comm, scripted, model, goal))

    assert ranks.run(body) == World(ranks.size).run(body)


@pytest.mark.thin(0)
@every_goal
@pytest.mark.ranks(1, 3)
def test_a_resumed_run_goes_on_to_the_bit(ranks, scripted, goal):
    def body(comm):
        straight, half, again = net(), net(), net(1)
        long, short, resumed = (made(comm, scripted, model, goal) for model in (straight, half, again))
        whole = steps(comm, straight, long)
        steps(comm, half, short, range(12))
        again.load_state_dict(half.state_dict())
        resumed.reduction.load_state_dict(short.reduction.state_dict())
        resumed.reduction._budget.budget.tracker.steps = 12
        return (whole[0][12:], whole[1]), steps(comm, again, resumed, range(12, STEPS))

    for whole, rest in ranks.run(body):
        assert whole == rest


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("goal", ["rate", "dense"])
def test_another_number_of_ranks_goes_on_with_what_was_spent(scripted, goal, size):
    def first(comm):
        model = net()
        optimizer = made(comm, scripted, model, GOALS[goal])
        steps(comm, model, optimizer)
        return optimizer.reduction.state_dict(), optimizer.reduction.decision

    saved = World(3).run(first)

    def then(comm):
        model = net()
        optimizer = made(comm, scripted, model, GOALS[goal])
        optimizer.reduction.take_over([state for state, _ in saved[comm.rank :: comm.size]], 3)
        controller = optimizer.reduction._budget.budget.tracker.controller
        taken = controller.k, controller.account.sent
        steps(comm, model, optimizer, range(3))
        return taken, controller.state()

    first_rank, *others = World(size).run(then)
    assert all(other == first_rank for other in others)
    assert first_rank[0][0] == saved[0][1].k and first_rank[0][1] > 0


@pytest.mark.ranks(3)
def test_a_step_that_overflows_is_left_out(ranks, scripted):
    def body(comm):
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = made(comm, scripted, model, GOALS["rate"], scaler=scaler)
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, step) * (np.inf if step == 2 and comm.rank == 1 else 1)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        return optimizer.reduction.decision.step

    assert ranks.run(body) == [3] * 3


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget": "5"}, "budget must be a number above 0 with a unit"),
        ({"budget": "5MB/s", "density": 0.1}, "density must be left out with budget"),
        ({"step_seconds": 0.0}, r"step_seconds must be in \(0, inf\)"),
        ({"budget": f"{8 * BUCKETS - 1}B/step"}, f"budget must let one entry of 8 bytes of each of {BUCKETS} segments"),
        ({"budget": "5MB/s", "algorithm": "dense"}, "algorithm must send less where k is smaller"),
    ],
)
def test_bad_arguments_raise_on_every_rank(ranks, options, error):
    def body(comm):
        model = net()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=error):
            DistributedOptimizer(plain, model.named_parameters(), comm=comm, bucket_cap_mb=SMALL, **options)

    ranks.run(body)


def picking(monkeypatch):
    """Let the fastest algorithm be another one at every trial, and on every bucket."""
    trials = iter(range(10**6))

    def pick(layouts, ks, comm):
        turn = comm.bcast(np.array([next(trials) if comm.rank == 0 else 0]), control=True)[0]
        known = budget_candidates()
        return [known[(turn + at) % len(known)] for at in range(len(layouts))]

    monkeypatch.setattr("sparse_mpi.training.bucket_budget.fastest_now", pick)


@pytest.mark.ranks(3)
def test_auto_picks_while_training_and_loses_nothing(ranks, scripted, monkeypatch):
    picking(monkeypatch)
    monkeypatch.setattr("sparse_mpi.reduction.autotune.PAUSE", 1)
    monkeypatch.setattr("sparse_mpi.reduction.autotune.FACTOR", 1)

    def body(comm):
        model = net()
        optimizer = made(comm, scripted, model, GOALS["rate"], algorithm="auto")
        names = []
        for step in range(SETTLED + 6):
            steps(comm, model, optimizer, [step], check=True)
            names.append([repr(algorithm) for algorithm in optimizer.reduction.algorithms])
        return names, weights(model).tobytes()

    first, *others = ranks.run(body)
    assert all(other == first for other in others)
    assert first[0][0] == [repr(ALGORITHMS["elect"]())] * BUCKETS
    assert len({str(names) for names in first[0]}) > 4


@pytest.mark.parametrize("size", [3, 2, 5])
def test_what_auto_has_picked_is_resumed(scripted, monkeypatch, size):
    picking(monkeypatch)

    def first(comm):
        model = net()
        optimizer = made(comm, scripted, model, GOALS["rate"], algorithm="auto")
        steps(comm, model, optimizer)
        return optimizer.reduction.state_dict(), repr(optimizer.reduction.algorithms)

    saved = World(3).run(first)

    def then(comm):
        optimizer = made(comm, scripted, net(), GOALS["rate"], algorithm="auto")
        optimizer.reduction.take_over([state for state, _ in saved[comm.rank :: comm.size]], 3)
        return repr(optimizer.reduction.algorithms)

    assert set(World(size).run(then)) == {saved[0][1]}


@pytest.mark.ranks(3)
def test_auto_tries_algorithms_that_follow_k_on_the_network_as_it_is(ranks):
    def body(comm):
        return [repr(algorithm) for algorithm in fastest_now([Layout.of(5000)] * 2, [50, 5], comm)]

    first, *others = ranks.run(body)
    assert all(other == first for other in others)
    assert {repr(ALGORITHMS["dense"]())}.isdisjoint(map(repr, budget_candidates()))
    assert set(first) <= set(map(repr, budget_candidates()))
