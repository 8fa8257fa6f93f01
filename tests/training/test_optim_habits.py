"""`DistributedOptimizer` and habits of training loops that might lose gradients, or let ranks go different ways."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.comm import NullComm

from .loops import equal, loss_of, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


def test_gradients_are_not_cleared_while_they_are_reduced_or_when_they_are_in_the_residual():
    model = net()
    optimizer = wrapped(model, NullComm(2), algorithm="topka")
    loss_of(model, 0, 0).backward()
    optimizer.step()  # from the second step on reductions begin in the backward pass
    loss_of(model, 0, 0).backward()
    with pytest.raises(RuntimeError, match="between backward.. and step.*being reduced"):
        optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="must see 1 backward passes between two steps"):
        loss_of(model, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    model = net()
    optimizer = wrapped(model, NullComm(2), in_place=True, overlap=False)
    loss_of(model, 0, 0).backward()
    with pytest.raises(RuntimeError, match="in the residual already"):
        optimizer.zero_grad()


def test_a_gradient_can_be_discarded_before_it_is_reduced(ranks):
    def run(comm, discards):
        model = net()
        optimizer = wrapped(model, comm, overlap=False)
        if discards:
            (1e3 * loss_of(model, comm.rank, 7)).backward()
            optimizer.zero_grad()
        loss_of(model, comm.rank, 0).backward()
        optimizer.step()
        return weights(model)

    assert equal(ranks.run(lambda comm: run(comm, False)) + ranks.run(lambda comm: run(comm, True)))


def test_a_step_that_was_left_out_does_not_let_the_next_one_go_alone(ranks):
    """Gradients that arrive after `synchronize` are reduced by `step`, whoever cleared the old ones."""

    def run(comm):
        model = net()
        optimizer = wrapped(model, comm)
        loss_of(model, comm.rank, 0).backward()
        optimizer.synchronize()
        model.zero_grad()
        loss_of(model, comm.rank, 1).backward()
        optimizer.step()
        return weights(model)

    assert equal(ranks.run(run))


def test_in_place_what_others_add_to_the_mean_does_not_stay():
    def entries(noise):
        model = net()
        optimizer = wrapped(model, NullComm(), in_place=True, density=None, k=20, bucket_cap_mb=None)
        for step in range(3):
            loss_of(model, 0, step).backward()
            optimizer.synchronize()
            if noise and step == 0:
                for p in model.parameters():
                    p.grad.add_(1e-9)
            if step < 2:
                with optimizer.skip_synchronize():
                    optimizer.step()
                optimizer.zero_grad()
        return sum(int(p.grad.count_nonzero()) for p in model.parameters())

    assert entries(True) == entries(False) <= 20


def test_frozen_parameters_do_not_hold_up_the_others():
    model = net()
    optimizer = wrapped(model, NullComm(2), algorithm="topka")
    loss_of(model, 0, 0).backward()
    optimizer.step()
    model[2].bias.requires_grad_(False)
    loss_of(model, 0, 0).backward()
    assert optimizer.reduction._next == len(optimizer.reduction.buckets) > 2
    optimizer.step()


def test_in_place_resumes_to_the_bit_between_passes(ranks):
    """The residual is in the buffer that two backward passes add to, resumed or not."""

    def run(comm):
        def steps(model, optimizer, numbers):
            for step in numbers:
                optimizer.zero_grad()
                for half in range(2):
                    loss_of(model, comm.rank, 2 * step + half).backward()
                optimizer.step()
            return weights(model)

        options = {"in_place": True, "backward_passes_per_step": 2}
        model = net()
        optimizer = wrapped(model, comm, **options)
        steps(model, optimizer, range(3))
        again = net()
        again.load_state_dict(model.state_dict())
        resumed = wrapped(again, comm, **options)
        resumed.reduction.load_state_dict(optimizer.reduction.state_dict())
        return steps(model, optimizer, range(3, 5)), steps(again, resumed, range(3, 5))

    assert all(np.array_equal(*both) for both in ranks.run(run))


@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_owed_weighs_the_same_on_another_number_of_ranks(ranks, op, in_place):
    """Of 4 old ranks: where gradients are averaged, what they owed together is kept as a share of the mean."""
    options = {"op": op, "in_place": in_place, "bucket_cap_mb": None}

    def old(comm):
        model = net()
        optimizer = wrapped(model, comm, **options)
        loss_of(model, comm.rank, 0).backward()
        optimizer.step()
        return optimizer.reduction.state_dict()

    saved = World(4).run(old)
    owed = sum(state["buckets"][0]["residual"] for state in saved)

    def new(comm):
        optimizer = wrapped(net(), comm, **options)
        optimizer.reduction.take_over(saved[comm.rank :: comm.size], 4)
        return optimizer.reduction.buckets[0].reducer.residual.copy()

    came = sum(ranks.run(new))
    factor = ranks.size / 4 if op == "average" else 1
    np.testing.assert_allclose(came, owed * factor, rtol=1e-5, atol=1e-6)
