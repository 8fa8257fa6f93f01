"""What training loops do, with embeddings whose gradients are sparse tensors: momentum, clipping, scalers, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.optim import DistributedOptimizer

from .calls import WHOLE, Call, Program
from .embedding_net import Net, distributed, tokens, train
from .loops import equal
from .orders import NONE, STEP, UPDATE
from .programs import Verdict
from .test_doors import in_process

pytestmark = pytest.mark.ranks(1, 3)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_mean_is_clipped(ranks, overlap):
    """Of the whole gradient without overlap, to within the sketch's error; else tables together by themselves."""
    most = 1e-3

    def run(comm):
        model = Net()
        optimizer = distributed(model, comm, clip_norm=most, overlap=overlap)
        model(tokens(comm.rank, 0)).backward()
        optimizer.synchronize()
        own = torch.cat([p.grad._values().flatten() for p in model.tables]).norm()
        rest = torch.cat([p.grad.flatten() for p in model.head.parameters()]).norm()
        return float(own), float(rest)

    for own, rest in ranks.run(run):
        if overlap:
            assert own == pytest.approx(most, rel=1e-5) and rest == pytest.approx(most, rel=0.2)
        else:
            assert np.hypot(own, rest) == pytest.approx(most, rel=0.2) and min(own, rest) < 0.95 * most


def test_a_loss_scaler_sees_an_overflow_of_any_rank():
    rest = (Call("synchronize"), STEP, UPDATE, NONE)
    calls = (WHOLE, *rest, Call("overflow", 2), *rest, WHOLE, *rest)
    assert in_process(Program(calls, 3, scaled=True, net="tables")) == Verdict(None, "trained")


def test_what_is_owed_stays_when_a_table_leaves_its_bucket(ranks):
    """A table that nobody uses in the first steps shares a bucket with the layer until it is seen."""

    def run(comm):
        torch.manual_seed(0)
        head, table = nn.Linear(30, 10), nn.Embedding(30, 2, sparse=True)
        both = [*head.parameters(), *table.parameters()]
        optimizer = DistributedOptimizer(torch.optim.SGD(both, lr=0.0), comm=comm, op="sum", density=0.02)
        draw, given, applied, lengths = torch.Generator().manual_seed(comm.rank), 0.0, 0.0, []
        for step in range(4):
            optimizer.zero_grad()
            loss = head(torch.randn(4, 30, generator=draw)).pow(2).sum()
            own = torch.autograd.grad(loss, head.parameters(), retain_graph=True)
            given += torch.cat([g.flatten() for g in own]).numpy()
            if step >= 2 and comm.rank == 0:
                loss = loss + table(torch.tensor([step])).sum()
            loss.backward()
            optimizer.step()
            applied += torch.cat([p.grad.flatten() for p in head.parameters()]).numpy()
            lengths.append(sum(bucket.reducer.layout.size for bucket in optimizer.reduction.buckets))
            assert (step >= 2) == (table.weight.grad is not None and table.weight.grad.is_sparse)
        assert lengths == [370, 370, 310, 310]
        (bucket,) = optimizer.reduction.buckets
        return given, applied, bucket.reducer.residual

    found = ranks.run(run)
    given, owed = (sum(one[i] for one in found) for i in (0, 2))
    assert np.abs(owed).sum() > 0
    np.testing.assert_allclose(found[0][1] + owed, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("where", ["one rank", "all ranks"])
def test_a_sparse_gradient_that_becomes_dense_is_an_error_on_all_ranks(ranks, where, overlap, clip_norm):
    """And nothing is under way afterwards: the step can be done again."""

    def run(comm):
        model = Net()
        optimizer = distributed(model, comm, overlap=overlap, clip_norm=clip_norm)
        train(comm, None, range(1), model, optimizer)
        optimizer.zero_grad()
        loss = model(tokens(comm.rank, 1))
        if where == "all ranks" or comm.rank == comm.size - 1:
            loss = loss + model.left.weight.sum()
        loss.backward()
        says = "must stay a sparse tensor of 1 sparse dimensions.*got a dense tensor; use the parameter in the same"
        with pytest.raises((TypeError, ValueError), match=says):
            optimizer.step()
        optimizer.zero_grad()
        return train(comm, None, range(1, 3), model, optimizer)

    assert equal(ranks.run(run))
