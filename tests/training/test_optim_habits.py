"""`DistributedOptimizer` and other people's loops: each order of calls trains as in torch, or is refused."""

from __future__ import annotations

import io
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sparse_mpi.comm import NullComm
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters

from .loops import equal, loss_of, own, said, train, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)
CHANGES = {  # of gradients, by a model, an optimizer and a rank, with and without a trace in version counters
    "clip": lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "data": lambda model, *_: [p.grad.data.clamp_(-0.01, 0.01) for p in model.parameters()],
    "numpy": lambda model, *_: [np.negative(p.grad.numpy(), out=p.grad.numpy()) for p in model.parameters()],
    "one entry": lambda model, *_: model[-1].bias.grad.numpy().__setitem__(0, 1.0),
    "replace": lambda model, *_: [setattr(p, "grad", torch.ones_like(p)) for p in model.parameters()],
    "zero_grad": lambda model, optimizer, rank: optimizer.zero_grad(),
    "zeros": lambda model, optimizer, rank: optimizer.zero_grad(set_to_none=False),
    "another pass": lambda model, optimizer, rank: loss_of(model, rank, 4).backward(),
    "cleared pass": lambda model, optimizer, rank: (optimizer.zero_grad(), loss_of(model, rank, 4).backward()),
}


def steady(comm, **options):
    """An optimizer behind the steps in which it looks on: its reductions start in the backward pass."""
    model = net()
    optimizer = wrapped(model, comm, **options)
    train(model, optimizer, own(comm.rank), range(3))
    optimizer.zero_grad()
    loss_of(model, comm.rank, 3).backward()
    assert optimizer.reduction.under_way == options.get("overlap", True)
    return model, optimizer


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("how", CHANGES)
def test_a_change_of_what_is_being_reduced_counts_as_from_the_first_step(ranks, how, alone, caplog):
    """Also of one rank alone: all reduce anew, as without overlap; later steps begin no reduction early."""

    def body(comm, **options):
        model, optimizer = steady(comm, density=1.0, algorithm="topka", **options)
        if not alone or comm.rank == comm.size - 1:
            CHANGES[how](model, optimizer, comm.rank)
        optimizer.step()
        train(model, optimizer, own(comm.rank), range(4, 6))
        assert not optimizer.reduction.under_way
        return weights(model)

    found, expected = ranks.run(body), ranks.run(partial(body, overlap=False))
    assert equal(found)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert said(ranks, caplog, "reductions begin in the step from now on")


@pytest.mark.parametrize("kind", ["residual", "leaky", "gmc", "dgc", "second moment"])
def test_gradients_that_are_reduced_anew_lose_nothing(ranks, kind):
    """Residuals, velocities and second moments are those of the gradient that was stepped along, to rounding.

    Of Elect, whose ranks have voted on the gradient of before, too, only second moments are.
    """
    adam = {"make": torch.optim.AdamW, "lr": 0.01, "algorithm": "elect"}
    options = adam if kind == "second moment" else {"algorithm": "oktopk", "momentum": "local", "feedback": kind}

    def body(comm, overlap):
        model, optimizer = steady(comm, density=0.3, overlap=overlap, **options)
        for parameter in model.parameters():
            parameter.grad.data.mul_(0.5)
        optimizer.step()
        reducers = [bucket.reducer for bucket in optimizer.reduction.buckets]
        if kind == "second moment":
            return [reducer.second_moment.state()["second_moment"] for reducer in reducers]
        return weights(model), [whole_state(reducer.feedback) for reducer in reducers]

    found, expected = (ranks.run(partial(body, overlap=overlap)) for overlap in (True, False))
    for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("first", ["discriminator", "generator"])
def test_a_discriminator_moves_by_its_own_loss_alone(ranks, first):
    """The generator's loss goes through it, and is a thousand times as large."""

    def body(comm, generates):
        torch.manual_seed(1)
        generator, judge = nn.Linear(4, 4), nn.Linear(4, 1)
        optimizer = wrapped(judge, comm, density=0.25, algorithm="topka")
        for number in range(6):
            x, z = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(10 * number + comm.rank))
            if generates and first == "generator":
                (-1000 * judge(generator(z)).mean()).backward()
            optimizer.zero_grad()
            (judge(generator(z).detach()).mean() - judge(x).mean()).backward()
            optimizer.step()
            if generates and first == "discriminator":
                (-1000 * judge(generator(z)).mean()).backward()
        return weights(judge)

    assert equal(ranks.run(lambda comm: body(comm, True)) + ranks.run(lambda comm: body(comm, False)))


def test_the_optimizer_stays_the_object_that_it_was(ranks):
    """Schedules made before, hooks, broadcasts and files go by it as ever."""

    def body(comm):
        model = net(comm.rank)
        plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        schedule, steps = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5), []
        optimizer = DistributedOptimizer(plain, model.named_parameters(), comm=comm, density=1.0)
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        assert optimizer is plain and type(optimizer) is torch.optim.SGD
        broadcast_parameters(model.state_dict(), comm=comm)
        broadcast_optimizer_state(optimizer, comm=comm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as of a schedule whose optimizer seems to take no step
            for number in range(3):
                train(model, optimizer, own(comm.rank), [number])
                schedule.step()
        assert len(steps) == 3
        torch.save(optimizer, io.BytesIO())
        return weights(model), optimizer.param_groups[0]["lr"]

    results = ranks.run(body)
    assert equal([w for w, _ in results]) and {rate for _, rate in results} == {1 / 8}


def test_a_compiled_step_reduces_as_ever():
    def trained(compiled):
        model = nn.Linear(6, 3)
        nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
        optimizer = wrapped(model, NullComm(), density=0.5)
        step = torch.compile(lambda: optimizer.step(), backend="eager") if compiled else optimizer.step
        for number in range(4):
            optimizer.zero_grad()
            (model(torch.ones(5, 6)).square().mean() * (1 + number)).backward()
            step()
        return weights(model)

    assert np.array_equal(trained(True), trained(False))
