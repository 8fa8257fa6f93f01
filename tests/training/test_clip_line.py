"""A user's `clip_grad_norm_` between reduction and AdamW's step is taken back, and done before the selection."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from .loops import SMALL, equal, own, said, weights, wrapped
from .loops import wide_net as net

MOST, STEPS = 0.02, 9


def trained(comm, change=lambda parameters: None, steps=STEPS, state=None, **options):
    """Return the optimizer and the weights behind some steps, each with a ``change`` of reduced gradients."""
    model, options = net(), {"density": 0.1, "momentum": "second-moment"} | options
    optimizer = wrapped(model, comm, torch.optim.AdamW, 0.01, algorithm="elect", **options)
    if state is not None:
        optimizer.reduction.load_state_dict(state["reduction"])
        optimizer.load_state_dict(state["optimizer"])
        model.load_state_dict(state["model"])
    for step in range(optimizer.reduction.steps, steps):
        optimizer.zero_grad()
        own(comm.rank)(model, step).backward()
        optimizer.synchronize()
        change(model.parameters())
        with optimizer.skip_synchronize():
            optimizer.step()
    kept = {"reduction": optimizer.reduction, "optimizer": optimizer, "model": model}
    return optimizer, weights(model), {name: one.state_dict() for name, one in kept.items()}


clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=MOST)


def halve(parameters):
    torch._foreach_div_([parameter.grad for parameter in parameters], 2)


@pytest.mark.thin(0, ranks=(3,), op=("sum",))  # of the mean the next test has it
@pytest.mark.ranks(2, 3, 8)
@pytest.mark.parametrize("how", [{"bucket_cap_mb": SMALL}, {"overlap": False, "bucket_cap_mb": SMALL}], ids=str)
@pytest.mark.parametrize("op", ["average", "sum"])
def test_its_limit_is_found_and_holds_before_the_selection(ranks, op, how, caplog):
    """Said once, and as if it had been given; each bucket is clipped by itself where there is overlap."""

    def body(comm):
        optimizer, made, _ = trained(comm, clip, op=op, **how)
        reduction = optimizer.reduction
        limits = [reduction.bucket_pass.max_norm]
        if "overlap" not in how:
            limits = [bucket.reducer.engine.settings.clip_norm for bucket in reduction.buckets]
        return made, limits, reduction.clip_line.limit

    def resumed(comm):  # a state has the limit, too
        halfway = trained(comm, clip, steps=6, op=op, **how)[2]
        return trained(comm, clip, state=halfway, op=op, **how)[1]

    results = ranks.run(body)
    assert said(ranks, caplog, "behind their reduction")
    assert equal([*ranks.run(resumed), results[0][0]])
    assert equal([made for made, *_ in results])
    for _, limits, found in results:
        assert set(limits) == {found} and found == pytest.approx(MOST / (ranks.size if op == "sum" else 1), rel=2e-3)


@pytest.mark.thin(0, ranks=(3,))
@pytest.mark.ranks(2, 3, 8)
def test_it_changes_nothing_where_gradients_are_clipped_anyway(ranks):
    """Every entry is sent, for a rounding elects others."""

    def body(comm):
        plain, changed = (trained(comm, *how, clip_norm=MOST, density=1.0)[1] for how in ((), (clip,)))
        np.testing.assert_allclose(changed, plain, rtol=1e-5, atol=1e-7)

    ranks.run(body)


@pytest.mark.thin(0, ranks=(3,))
def test_a_factor_that_follows_from_no_norm_is_no_clip(ranks, caplog):
    def body(comm):
        optimizer = trained(comm, halve)[0]
        assert optimizer.reduction.clip_line.limit is None
        return {bucket.reducer.engine.settings.clip_norm for bucket in optimizer.reduction.buckets}

    assert ranks.run(body) == [{None}] * ranks.size and said(ranks, caplog, "and not clipped")


@pytest.mark.thin(0, ranks=(3,))
def test_a_factor_of_some_gradients_is_the_users(ranks):
    def body(comm):
        half = trained(comm, lambda parameters: next(iter(parameters)).grad.div_(2), steps=3)[1]
        return abs(half - trained(comm, steps=3)[1]).max()

    assert min(ranks.run(body)) > 1e-3
