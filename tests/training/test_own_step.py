"""The step is the user's: a call of it counts once, and weights that move without it are noticed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi import DiLoCo

from .loops import equal, loss_of, net, own, said, train, weights, wide_net, wrapped

pytestmark = pytest.mark.ranks(1, 3)


class Sign(torch.optim.AdamW):
    """Inherits groups and state, and steps by itself."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.sub_(parameter.grad.sign(), alpha=self.param_groups[0]["lr"])


class Sharp(torch.optim.Optimizer):
    """SAM in its public form: two methods move weights, and the step belongs to an inner optimizer."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)

    @torch.no_grad()
    def first_step(self, change=torch.Tensor.add_):
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
            change(p, p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


def sharpened(model, optimizer, rank, steps, **first):
    for number in range(steps):
        loss_of(model, rank, number).backward()
        optimizer.first_step(**first)
        loss_of(model, rank, number).backward()
        optimizer.second_step()


def test_an_adam_that_goes_through_several_classes_moves_as_far_as_adam(ranks):
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # torch hooks the step of a class when the first of it is made

    class Outer(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)

    def body(comm, kind):
        model = wide_net()
        optimizer = wrapped(model, comm, kind, lr=0.01, density=0.3, momentum="local")
        return train(model, optimizer, own(comm.rank), range(5))

    through, plain = (ranks.run(partial(body, kind=one)) for one in (Outer, torch.optim.AdamW))
    assert all(np.array_equal(*pair) for pair in zip(through, plain, strict=True))


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_a_subclass_with_a_step_of_its_own_takes_it(ranks, density, caplog):
    def body(comm):
        model = wide_net()
        before = weights(model)
        optimizer = wrapped(model, comm, Sign, lr=0.5, density=density, algorithm="topka")
        train(model, optimizer, own(comm.rank), [0])
        return np.abs(weights(model) - before)

    for moved in ranks.run(body):
        assert set(np.unique(moved.round(5))) <= {0.0, 0.5} and moved.any()
    assert said(ranks, caplog, "Sign has a step of its own")
    with pytest.raises(TypeError, match="Sign, whose step is none of torch's Adam"):
        ranks.run(lambda comm: wrapped(wide_net(), comm, Sign, momentum="arrival"))


def test_a_step_that_fails_leaves_no_trace(ranks):
    class Fails(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            found = super().step(closure)
            if self.fails:
                raise OSError("disk")
            return found

    torch.optim.SGD([nn.Parameter(torch.zeros(1))])

    def body(comm):
        model = wide_net()
        optimizer = wrapped(model, comm, partial(Fails, momentum=0.9), density=1.0)
        assert optimizer.rule.mode == "local"
        with pytest.raises(OSError, match="disk"):
            train(model, optimizer, own(comm.rank), [0])
        optimizer.fails = False
        return train(model, optimizer, own(comm.rank), range(1, 4))

    assert equal(ranks.run(body))


@pytest.mark.parametrize("how", [torch.Tensor.add_, lambda p, g, alpha: p.data.add_(g, alpha=alpha)], ids=["", "data"])
@pytest.mark.parametrize("door", ["optimizer", "local steps"])
def test_weights_that_move_without_a_step_are_noticed_on_all_ranks(ranks, door, how):
    def body(comm):
        model = net()
        optimizer = Sharp(model.parameters(), lr=0.1)
        if door == "optimizer":
            wrapped(model, comm, lambda parameters, lr: optimizer)
        else:
            DiLoCo(model, optimizer, torch.optim.SGD(model.parameters(), 1.0), 2, comm=comm)
        with pytest.raises(RuntimeError, match=r"weights must move in the step\(\).*give the optimizer whose step\(\)"):
            sharpened(model, optimizer, comm.rank, 10, change=how)

    ranks.run(body)


@pytest.mark.parametrize("way", ["base", "synchronize"])
def test_the_ways_that_the_error_names_reduce(ranks, way):
    def body(comm):
        model = net()
        optimizer = Sharp(model.parameters(), lr=0.1)
        if way == "base":
            wrapped(model, comm, lambda parameters, lr: optimizer.base, density=1.0)
            sharpened(model, optimizer, comm.rank, 12)
            return weights(model)
        wrapped(model, comm, lambda parameters, lr: optimizer, density=1.0)
        for number in range(12):
            for move in (optimizer.first_step, optimizer.second_step):
                loss_of(model, comm.rank, number).backward()
                optimizer.synchronize()
                move()
                optimizer.reduction.stepped()
        return weights(model)

    assert equal(ranks.run(body))


def test_other_habits_go_on(ranks):
    """Accumulation, a critic of many steps whose weights are clipped, weights that are swapped for an evaluation."""

    def body(comm):
        torch.manual_seed(0)
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        of_generator, of_critic = (wrapped(model, comm, density=0.5) for model in (generator, critic))
        for number in range(36):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * number + comm.rank))
            of_critic.zero_grad()
            (critic(generator(x)).mean() - critic(x).mean()).backward()  # not detached: the generator has passes
            of_critic.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            kept = [parameter.detach().clone() for parameter in critic.parameters()]
            for parameter, value in zip(critic.parameters(), kept, strict=True):
                parameter.data.mul_(0.5)
                parameter.data.copy_(value)
            if number % 12 == 11:
                of_generator.zero_grad()
                critic(generator(x)).mean().backward()
                of_generator.step()
        for number in range(40):
            loss = critic(x * number).mean()
            loss.backward()
        of_critic.step()
        return np.concatenate([weights(generator), weights(critic)])

    assert equal(ranks.run(body))


def test_two_optimizers_that_take_turns_explain_each_others_moves(ranks):
    def body(comm):
        model = net()
        first, second = (wrapped(model, comm, density=1.0) for _ in range(2))
        for number, optimizer in enumerate([first] * 12 + [second] * 12):
            train(model, optimizer, own(comm.rank), [number])
        return weights(model)

    assert equal(ranks.run(body))


def test_a_rank_without_inputs_steps_by_itself_beside_a_scaler(ranks):
    def body(comm):
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = wrapped(model, comm, density=1.0, scaler=scaler)
        for number in range(4):
            optimizer.zero_grad()
            if comm.rank and number > 1 or comm.rank == 2:
                optimizer.step()
                continue
            scaler.scale(loss_of(model, comm.rank, number)).backward()
            scaler.step(optimizer)
            scaler.update()
        return weights(model)

    assert equal(ranks.run(body))


def test_a_scaler_that_is_given_and_not_used_has_no_effect(ranks):
    def body(comm, scaler):
        model = net()
        return train(model, wrapped(model, comm, density=0.3, scaler=scaler), own(comm.rank), range(4))

    with_one, without = (ranks.run(partial(body, scaler=scaler)) for scaler in (torch.amp.GradScaler("cpu"), None))
    for one, other in zip(with_one, without, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_rank_without_inputs_takes_part_at_a_rate_of_0(ranks):
    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, density=1.0)
        for number in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 * (number < 3)
            optimizer.zero_grad(set_to_none=False)
            if not comm.rank or number < 3:
                loss_of(model, comm.rank, number).backward()
            optimizer.step()
        return weights(model)

    assert equal(ranks.run(body))
