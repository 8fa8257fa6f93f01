"""`DistributedOptimizer`: steps of all ranks along one gradient, whatever the model and the training loop do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi.comm import NullComm

from .loops import SMALL, loss_of, own, train, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3, 4)


def test_nothing_is_lost(ranks):
    """Law 2 over a run: what was applied and what is still owed are all gradients there were."""

    def flat(gradients) -> np.ndarray:
        return torch.cat([g.detach().flatten() for g in gradients]).numpy().copy()

    def run(comm):
        model, applied, brought = net(), 0.0, 0.0
        optimizer = wrapped(model, comm, lr=0.0, op="sum", density=0.02, bucket_cap_mb=SMALL)
        optimizer.reduction.check = True
        for step in range(5):
            optimizer.zero_grad()
            brought += flat(torch.autograd.grad(loss_of(model, comm.rank, step), model.parameters()))
            loss_of(model, comm.rank, step).backward()
            optimizer.step()
            applied += flat(p.grad for p in model.parameters())
        owed = {}
        for bucket in optimizer.reduction.buckets:
            ends = np.cumsum([p.numel() for p in bucket.parameters])[:-1]
            owed |= zip(bucket.parameters, np.split(bucket.reducer.residual, ends), strict=True)
        return applied, brought, np.concatenate([owed[p] for p in model.parameters()])

    results = ranks.run(run)
    brought, owed = (sum(one[i] for one in results) for i in (1, 2))
    np.testing.assert_allclose(results[0][0] + owed, brought, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cap", "tolerance"), [(None, 0), (SMALL, 5)])
def test_k_is_for_all_parameters_together(cap, tolerance):
    model = net()
    optimizer = wrapped(model, NullComm(2), algorithm="oktopk", density=None, k=100, bucket_cap_mb=cap)
    train(model, optimizer, own(0), [0])
    assert abs(optimizer.reduction.report.selected - 100) <= tolerance
