"""`DistributedOptimizer` and habits of training loops that might lose gradients, or let ranks go different ways."""

from __future__ import annotations

import pytest

from sparse_mpi.comm import NullComm

from .loops import equal, loss_of, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


def test_gradients_are_not_cleared_while_they_are_reduced():
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


def test_frozen_parameters_do_not_hold_up_the_others():
    model = net()
    optimizer = wrapped(model, NullComm(2), algorithm="topka")
    loss_of(model, 0, 0).backward()
    optimizer.step()
    model[2].bias.requires_grad_(False)
    loss_of(model, 0, 0).backward()
    assert optimizer.reduction._next == len(optimizer.reduction.buckets) > 2
    optimizer.step()
