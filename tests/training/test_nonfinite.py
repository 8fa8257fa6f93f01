"""A step in which a gradient of any rank is not finite leaves no trace, on all ranks alike."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from . import embedding_net
from .loops import equal, loss_of, own, said, train, weights, wide_net, wrapped

pytestmark = pytest.mark.ranks(1, 3)

MAKERS = {
    "SGD": (partial(torch.optim.SGD, momentum=0.9), 0.1, {}),
    "SGD, dgc": (torch.optim.SGD, 0.1, {"feedback": "dgc"}),
    "AdamW": (torch.optim.AdamW, 0.01, {}),
    "AdamW, local": (torch.optim.AdamW, 0.01, {"momentum": "local", "algorithm": "oktopk"}),
}


def memory(model, optimizer):
    """All that a step may leave a trace in, without the algorithms' own states: residuals, moments, weights."""
    vectors = optimizer.reduction.state_dict()["vectors"]
    kept = [{k: x for k, x in v["reducer"].items() if isinstance(x, torch.Tensor)} for v in vectors]
    moments = [state for state in optimizer.state_dict()["state"].values()]
    return copy.deepcopy([weights(model), kept, moments])


def broken(model, comm, number, where):
    """A pass whose gradient is NaN in a ``where`` of one rank."""
    loss_of(model, comm.rank, number).backward()
    if comm.rank == comm.size - 1:
        parameters = list(model.parameters())
        chosen = {"everywhere": parameters, "first": parameters[:1], "last": parameters[-1:]}[where]
        for parameter in chosen:
            parameter.grad.view(-1)[0] = float("nan") if where != "last" else float("inf")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("where", ["everywhere", "first", "last"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_step_that_is_not_finite_leaves_no_trace(ranks, kind, where, overlap, caplog):
    make, rate, options = MAKERS[kind]

    def body(comm):
        model = wide_net()
        optimizer = wrapped(model, comm, make, lr=rate, density=0.2, overlap=overlap, **options)
        train(model, optimizer, own(comm.rank), range(4))
        before = memory(model, optimizer)
        optimizer.zero_grad()
        broken(model, comm, 4, where)
        optimizer.step()
        assert all(parameter.grad.isnan().all() for parameter in model.parameters())
        for x, y in zip(tree_leaves(memory(model, optimizer)), tree_leaves(before), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-7)
        assert optimizer.reduction.report.skipped == optimizer.reduction.skipped == 1
        return train(model, optimizer, own(comm.rank), range(5, 8))

    found = ranks.run(body)
    assert equal(found) and np.isfinite(found[0]).all()
    assert said(ranks, caplog, "all ranks leave this step out, 1 so far")


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_step_that_a_scaler_leaves_out_leaves_no_trace_to_the_bit(ranks, where):
    """One layer of one rank has overflowed, and the others' gradients are not attempted."""

    def body(comm):
        model, scaler = wide_net(), torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = wrapped(model, comm, torch.optim.AdamW, lr=0.01, density=0.2, scaler=scaler)
        for number in range(4):
            before = memory(model, optimizer)
            optimizer.zero_grad()
            scaler.scale(loss_of(model, comm.rank, number)).backward()
            if number == 3 and comm.rank == comm.size - 1:
                list(model.parameters())[0 if where == "first" else -1].grad.view(-1)[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 4.0
        for x, y in zip(tree_leaves(memory(model, optimizer)), tree_leaves(before), strict=True):
            assert np.array_equal(x, y)

    ranks.run(body)


def test_a_guard_of_the_users_own_skips_one_step(ranks):
    def body(comm):
        model, skipped = wide_net(), []
        optimizer = wrapped(model, comm, torch.optim.AdamW, lr=0.01)
        for number in range(8):
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, number)
            (loss * float("nan") if number == 3 and not comm.rank else loss).backward()
            optimizer.synchronize()
            if nn.utils.clip_grad_norm_(model.parameters(), 10.0).isfinite():
                optimizer.step()
            else:
                skipped.append(number)
                optimizer.zero_grad()
                optimizer.reduction.stepped()
        return skipped

    assert ranks.run(body) == [[3]] * ranks.size


@pytest.mark.parametrize("where", ["table", "layer"])
def test_tables_are_left_out_with_the_others(ranks, where):
    def body(comm):
        model = embedding_net.Net()
        optimizer = wrapped(model, comm, density=0.3)
        for number in range(5):
            optimizer.zero_grad()
            before = weights(model)
            embedding_net.loss_of(model, comm.rank, number).backward()
            if number == 3 and not comm.rank:
                broken = model.left.weight.grad._values() if where == "table" else model.head.weight.grad
                broken.fill_(float("nan"))
            optimizer.step()
            assert number != 3 or np.array_equal(weights(model), before)
        assert optimizer.reduction.skipped == 1
        return weights(model)

    assert equal(ranks.run(body))


def test_what_is_kept_is_stepped_along(ranks):
    def body(comm):
        model = wide_net()
        optimizer = wrapped(model, comm, nonfinite="keep", density=1.0)
        broken(model, comm, 0, "everywhere")
        optimizer.step()
        return bool(np.isnan(weights(model)).any())

    assert all(ranks.run(body))
