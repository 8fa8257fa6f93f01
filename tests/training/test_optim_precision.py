"""`DistributedOptimizer` with loss scalers, autocast and models in half precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from .loops import equal, loss_of, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


def test_a_loss_scaler_skips_a_step_on_all_ranks_and_leaves_no_trace(ranks):
    def run(comm, scaled, overflow=None):
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        optimizer = wrapped(model, comm, scaler=scaler if scaled else None)
        history = []
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, step)
            if step == overflow and comm.rank == comm.size - 1:
                loss = loss * torch.tensor(float("inf"))
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            owed = np.concatenate([bucket.reducer.residual for bucket in optimizer.reduction.buckets])
            history.append((weights(model), scaler.get_scale(), owed.copy()))
        return history

    plain, scaled = ([one[-1][0] for one in ranks.run(lambda comm, s=s: run(comm, s))] for s in (False, True))
    assert equal(scaled)
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-4, atol=1e-6)
    over = ranks.run(lambda comm: run(comm, True, overflow=2))
    assert equal([one[-1][0] for one in over])
    for rank in over:  # what is owed stays as it was
        assert np.array_equal(rank[1][2], rank[2][2]) and not np.array_equal(rank[2][2], rank[3][2])
    (before, _, _), (after, halved, _), (later, _, _) = over[0][1], over[0][2], over[0][3]
    assert np.array_equal(before, after) and halved == 2.0**9  # a step that was skipped, on every rank
    assert np.isfinite(later).all() and not np.array_equal(after, later)  # and the next is not


@pytest.mark.parametrize("how", ["bfloat16", "float16", "autocast"])
def test_replicas_in_half_precision_stay_equal(ranks, how):
    half = None if how == "autocast" else getattr(torch, how)

    def run(comm):
        model = net().to(half)
        optimizer = wrapped(model, comm, density=0.5)
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half is None):
                loss = model(torch.ones(2, 20, dtype=half) * (1 + comm.rank + step)).pow(2).mean()
            loss.backward()
            optimizer.step()
        assert model[0].weight.grad.dtype == (half or torch.float32)
        return weights(model)

    results = ranks.run(run)
    assert equal(results) and not np.array_equal(results[0], weights(net().to(half)))
