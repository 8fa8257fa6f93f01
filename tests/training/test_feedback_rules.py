"""Every feedback rule in training: resumed, scaled, on other ranks."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_mpi.comm import NullComm
from sparse_mpi.feedback.base import whole_state

from ..reduction.rules import KINDS, RULES
from .loops import loss_of, weights, wrapped
from .loops import wide_net as net

few_ranks = pytest.mark.ranks(1, 3)
every_rule = pytest.mark.parametrize("kind", RULES)


def made(comm, model, kind, **options):
    return wrapped(model, comm, feedback=KINDS[kind], named_parameters=model.named_parameters(), **options)


def steps(comm, model, optimizer, numbers=range(4), scaler=None) -> np.ndarray:
    """Train as a loop does that knows nothing of the rule; return the weights."""
    for number in numbers:
        optimizer.zero_grad()
        loss = loss_of(model, comm.rank, number)
        (scaler.scale(loss) if scaler else loss).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
    return weights(model)


@pytest.mark.thin(1)
@few_ranks
@every_rule
def test_a_resumed_run_goes_on_to_the_same_bits_after_a_dense_warm_up(ranks, kind):
    """Where the rule has no momentum the optimizer has its own, in its state."""

    def begun(comm, seed=0):
        model, rule = net(seed), KINDS[kind]
        sgd = partial(torch.optim.SGD, momentum=0.0 if rule.traits.momentum else 0.9)
        return model, made(comm, model, kind, make=sgd, momentum="local")

    def body(comm):
        (straight, long), (again, resumed) = begun(comm), begun(comm, 1)
        reducers = [bucket.reducer for bucket in long.reduction.buckets]
        for algorithm, numbers in (("dense", range(2)), (reducers[0].algorithm, range(2, 4))):
            for reducer in reducers:
                reducer.use(algorithm)
            steps(comm, straight, long, numbers)
        again.load_state_dict(straight.state_dict())
        resumed.load_state_dict(deepcopy(long.state_dict()))
        resumed.reduction.load_state_dict(long.reduction.state_dict())
        return steps(comm, straight, long, range(4, 7)), steps(comm, again, resumed, range(4, 7))

    for straight, resumed in ranks.run(body):
        assert straight.tobytes() == resumed.tobytes()


@every_rule
def test_a_loss_scale_shows_nowhere(kind):
    """A power of two, so that it changes no bit, nor in a flush; a step that overflows leaves no trace."""
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = net()
        optimizer = made(NullComm(), model, kind, scaler=scaler)
        steps(NullComm(), model, optimizer, range(2), scaler=scaler)
        if scaler:
            optimizer.zero_grad()
            (loss_of(model, 0, 0) * torch.inf).backward()
            optimizer.synchronize()
            optimizer.reduction.stepped()
        steps(NullComm(), model, optimizer, range(2, 4), scaler=scaler)
        if KINDS[kind].traits.defers:
            optimizer.flush()
        ends.append(weights(model))
    assert np.array_equal(*ends)


@every_rule
@pytest.mark.parametrize("op", ["average", "sum"])
def test_other_ranks_go_on_where_the_old_ones_stopped(kind, op):
    """The mean gradient that is owed, or gone along, is what it was, or the sum."""
    old, new = (4, 2) if op == "average" else (1, 1)

    def saved(comm):
        model = net()
        optimizer = made(comm, model, kind, bucket_cap_mb=None, op=op)
        steps(comm, model, optimizer)
        return optimizer.reduction.state_dict()

    states = World(4).run(saved)

    def body(comm):
        model = net()
        optimizer = made(comm, model, kind, bucket_cap_mb=None, op=op)
        optimizer.reduction.take_over(states[comm.rank :: comm.size], 4)
        rule = optimizer.reduction.buckets[0].reducer.feedback
        taken = {name: array.copy() for name, array in whole_state(rule).items()}
        steps(comm, model, optimizer, range(4, 6))
        return taken, list(rule.state()), list(rule.state(replicated=True))

    results = World(2).run(body)
    for name in results[0][1]:
        expected = sum(state["vectors"][0]["reducer"][name] for state in states) / old
        np.testing.assert_allclose(sum(taken[name] for taken, *_ in results) / new, expected, rtol=1e-4, atol=1e-6)
    for name in results[0][2]:
        for taken, *_ in results:
            np.testing.assert_allclose(taken[name] / new, states[0]["vectors"][0]["reducer"][name] / old, rtol=1e-5)
