"""Steps that a budget makes dense while training changes around them: asking on one rank, new buckets, bad states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.budget import BudgetTracker
from sparse_mpi.optim import DistributedOptimizer

from ..golden.trajectories import Clocked

PLENTY = {"budget": "1GB/step"}  # for which every step becomes dense


@pytest.fixture(autouse=True)
def one_clock(monkeypatch):
    """Every step takes as long as the one before: which become dense must not depend on how busy the machine is."""
    monkeypatch.setattr(BudgetTracker, "measured", Clocked.measured)


class Net(torch.nn.Module):
    """Two layers, and rows of an embedding once ``rows`` is set."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 16, sparse=True)
        self.first, self.last, self.rows = torch.nn.Linear(16, 64), torch.nn.Linear(64, 8), False

    def forward(self, x):
        x = x + self.table(torch.arange(4)) if self.rows else x
        return self.last(torch.relu(self.first(x)))


def optimizer_of(comm, module, **options):
    plain = torch.optim.SGD(module.parameters(), lr=0.01)
    return DistributedOptimizer(plain, module.named_parameters(), comm=comm, **PLENTY, **options)


def step(comm, net, optimizer, number):
    generator = torch.Generator().manual_seed(10 * number + comm.rank)
    optimizer.zero_grad()
    net(torch.randn(4, 16, generator=generator)).square().mean().backward()
    optimizer.step()


@pytest.mark.ranks(2, 3)
def test_a_rank_may_ask_alone_what_was_decided(ranks):
    def body(comm):
        net = Net()
        optimizer = optimizer_of(comm, net.first)
        for number in range(40):
            step(comm, torch.nn.Sequential(net.first), optimizer, number)
            if comm.rank == 0:
                assert optimizer.reduction.decision is not None or number == 0
                assert optimizer.reduction.report.total > 0
            comm.allreduce(np.ones(1))  # such as an evaluation
        return optimizer.reduction.decided.dense

    assert all(ranks.run(body))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("late", ["embedding", "group"])
def test_buckets_may_change_while_steps_are_dense(ranks, late):
    """A table that is used for the first time, or a group of parameters that is trained from now on."""

    def body(comm):
        net = Net()
        if late == "group":
            net.first.requires_grad_(False)
        optimizer = optimizer_of(comm, net if late == "embedding" else net.last, bucket_cap_mb=0.001)
        for number in range(40):
            net.rows = late == "embedding" and number >= 30
            if late == "group" and number == 30:
                net.first.requires_grad_(True)
                optimizer.add_param_group({"params": list(net.first.parameters())})
            step(comm, net, optimizer, number)
        assert optimizer.reduction.decided.dense
        optimizer.reduction.load_state_dict(optimizer.reduction.state_dict())
        step(comm, net, optimizer, 99)

    ranks.run(body)


def test_a_state_that_is_refused_leaves_steps_dense():
    def body(comm):
        net = Net()
        optimizer = optimizer_of(comm, net.first)
        for number in range(40):
            step(comm, torch.nn.Sequential(net.first), optimizer, number)
        state = optimizer.reduction.state_dict()
        with pytest.raises(ValueError, match="bucket"):
            optimizer.reduction.load_state_dict(state | {"buckets": []})
        return {repr(algorithm) for algorithm in optimizer.reduction.algorithms}

    assert World(2).run(body) == [{"Dense()"}] * 2


def test_no_step_has_an_amount_of_its_own_dense_or_not():
    def body(comm):
        reducer = SparseAllreduce(500, comm=comm, **PLENTY)
        for number in range(40):
            reducer.step(np.random.default_rng([comm.rank, number]).standard_normal(500).astype(np.float32))
            with pytest.raises(ValueError, match="budget"):
                reducer.step(np.ones(500, np.float32), k=10)
        return reducer.decision.dense

    assert all(World(2).run(body))


def test_votes_are_of_the_residual_there_is(monkeypatch):
    """A dense step sends all that was owed, so that elect must not go on with votes of it."""
    forgotten, forget = [], Elect.forget

    def noted(self, state):
        forgotten.append(state)
        return forget(self, state)

    monkeypatch.setattr(Elect, "forget", noted)

    def alone(comm):
        reducer = SparseAllreduce(500, comm=comm, algorithm="elect", **PLENTY)
        for number in range(40):
            reducer.step(np.random.default_rng([comm.rank, number]).standard_normal(500).astype(np.float32))

    def together(comm):
        net = Net()
        optimizer = optimizer_of(comm, net.first)
        for number in range(40):
            step(comm, torch.nn.Sequential(net.first), optimizer, number)

    for body in (alone, together):
        forgotten.clear()
        World(2).run(body)
        assert len(forgotten) >= 2
