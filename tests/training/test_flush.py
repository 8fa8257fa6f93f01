"""`DistributedOptimizer.flush`: a last step along all that is owed, once, whatever the training loop was."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

from .loops import loss_of, weights, wrapped
from .loops import wide_net as net

few_ranks = pytest.mark.ranks(1, 3)
LOOPS = {
    "copied": {},
    "late": {"overlap": False},
    "one bucket": {"bucket_cap_mb": None},
    "sum": {"op": "sum"},
    "passes": {"backward_passes_per_step": 2},
}


def steps(comm, model, optimizer, count: int, passes: int = 1) -> np.ndarray:
    """Train, and return the sum of this rank's gradients."""
    gave = np.zeros(len(weights(model)))
    for step in range(count):
        optimizer.zero_grad()
        for part in range(passes):
            loss = loss_of(model, comm.rank, passes * step + part)
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            gave += torch.cat([g.flatten() for g in gradients]).numpy()
            loss.backward()
        optimizer.step()
    return gave


@few_ranks
@pytest.mark.parametrize("loop", LOOPS)
def test_training_has_then_gone_along_every_gradient(ranks, loop):
    options = LOOPS[loop]

    def body(comm):
        model = net()
        before = weights(model)
        optimizer = wrapped(model, comm, **options)
        gave = steps(comm, model, optimizer, 4, options.get("backward_passes_per_step", 1))
        optimizer.flush()
        assert not any(bucket.reducer.residual.any() for bucket in optimizer.reduction.buckets)
        after = weights(model)
        steps(comm, model, optimizer, 1, options.get("backward_passes_per_step", 1))
        return gave, before - after, weights(model)

    results = ranks.run(body)
    divisor = 1 if options.get("op") == "sum" else ranks.size
    gave = np.sum([gave for gave, *_ in results], axis=0) / divisor
    for _, moved, last in results:
        np.testing.assert_allclose(moved, 0.1 * gave, rtol=1e-4, atol=1e-5)
        assert np.array_equal(last, results[0][2])


@few_ranks
@pytest.mark.parametrize("momentum", ["local", "global", "corrected"])
def test_what_is_owed_is_applied_without_decay_and_without_the_optimizers_momentum(ranks, momentum):
    def body(comm):
        model = net()
        make = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.5)
        optimizer = wrapped(model, comm, make, momentum=momentum, bucket_cap_mb=None)
        steps(comm, model, optimizer, 3)
        (bucket,) = optimizer.reduction.buckets
        owed, before = bucket.reducer.residual.copy(), weights(model)
        gathered = [dict(optimizer.state[p]) for p in model.parameters()]
        gathered = [{name: x.clone() for name, x in state.items() if torch.is_tensor(x)} for state in gathered]
        optimizer.flush()
        for parameter, state in zip(model.parameters(), gathered, strict=True):
            assert all(torch.equal(optimizer.state[parameter][name], x) for name, x in state.items())
        (group,) = optimizer.param_groups
        assert (group["momentum"], group["weight_decay"]) == (0.9, 0.5)
        return owed, before, weights(model)

    results = ranks.run(body)
    mean = np.sum([owed for owed, *_ in results], axis=0) / ranks.size
    for _, before, after in results:
        np.testing.assert_allclose(after, before - 0.1 * mean, rtol=1e-5, atol=1e-6)


@few_ranks
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW], ids=lambda make: make.__name__)
def test_other_optimizers_take_a_step_of_theirs_without_decay(ranks, make):
    def body(comm):
        model = net()
        optimizer = wrapped(model, comm, partial(make, weight_decay=0.5), 0.01, momentum="local")
        steps(comm, model, optimizer, 3)
        twin = net()
        twin.load_state_dict(model.state_dict())
        alone = make(twin.parameters(), 0.01, weight_decay=0.0)
        alone.load_state_dict(deepcopy(optimizer.state_dict()))
        alone.param_groups[0]["weight_decay"] = 0.0
        optimizer.flush()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.grad = ours.grad.clone()
        alone.step()
        assert np.array_equal(weights(model), weights(twin)) and optimizer.param_groups[0]["weight_decay"] == 0.5

    ranks.run(body)
