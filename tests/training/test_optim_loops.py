"""What training loops do with an optimizer besides stepping: clipping, closures, scalers, models that change."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.bucket import cut

from .loops import equal, loss_of, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


def test_buckets_are_cut_from_the_end_and_the_last_is_small():
    p = [nn.Parameter(torch.zeros(n)) for n in (2, 2, 10, 20, 30, 5)] + [nn.Parameter(torch.zeros(3).double())]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 4 * 35)] == [[3], [30, 5], [10, 20], [2, 2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 1)] == [[3], [5], [30], [20], [10], [2], [2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, float("inf"))] == [[3], [2, 2, 10, 20, 30, 5]]
    assert cut([], 1) == [] and [len(bucket) for bucket in cut(p[:1], 1)] == [1]


@pytest.mark.parametrize("skip", [True, False])
def test_gradients_are_clipped_after_they_are_reduced_and_not_reduced_again(ranks, skip):
    def run(comm):
        model = net()
        optimizer = wrapped(model, comm)
        norms = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, comm.rank, step).backward()
            optimizer.synchronize()
            sent = optimizer.reduction.comm.traffic.messages
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
            kept = [p.grad.clone() for p in model.parameters()]
            with optimizer.skip_synchronize() if skip else nullcontext():
                optimizer.step()
            assert optimizer.reduction.comm.traffic.messages == sent
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True))
        return np.concatenate([weights(model), norms])

    assert equal(ranks.run(run))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zip"}, "zip"),
        ({"named_parameters": [("a", nn.Parameter(torch.zeros(3)))]}, "must have all 6 parameters"),
        # Compared before a communicator is made that waits in another way than that of the others
        pytest.param({"overlap": False}, "overlap=False", marks=pytest.mark.ranks(3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.under_mpi(3)
def test_bad_arguments(ranks, options, message):
    """On one rank of several: all raise."""

    def run(comm):
        bad = options if comm.rank == comm.size - 1 else {}
        with pytest.raises(ValueError, match=message if bad else "all ranks|" + message):
            wrapped(net(), comm, **bad)

    ranks.run(run)


def test_only_torch_optimizers_once():
    with pytest.raises(TypeError, match=r"plain torch\.optim\.Optimizer, got SGD"):
        DistributedOptimizer(wrapped(net(), NullComm(2)), comm=NullComm(2))
    with pytest.raises(ValueError, match="got 'a' twice"):
        p = nn.Parameter(torch.zeros(3))
        DistributedOptimizer(torch.optim.SGD([p], 0.1), [("a", p), ("a", p)], comm=NullComm(2))
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="is the model frozen"):
        wrapped(model, NullComm(2))
