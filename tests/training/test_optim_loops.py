"""What an optimizer is made of: buckets, their share of k, and optimizers that cannot be wrapped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.bucket import EVERY, RUN, cut

from .loops import SMALL, own, train, wrapped
from .loops import wide_net as net


def test_buckets_are_cut_from_the_end_and_the_last_is_small():
    p = [nn.Parameter(torch.zeros(n)) for n in (2, 2, 10, 20, 30, 5)] + [nn.Parameter(torch.zeros(3).double())]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 4 * 35)] == [[3], [30, 5], [10, 20], [2, 2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 1)] == [[3], [5], [30], [20], [10], [2], [2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, float("inf"))] == [[3], [2, 2, 10, 20, 30, 5]]
    assert cut([], 1) == [] and [len(bucket) for bucket in cut(p[:1], 1)] == [1]


@pytest.mark.parametrize(("cap", "tolerance"), [(None, 0), (SMALL, 5)])
def test_k_is_for_all_parameters_together(cap, tolerance):
    model = net()
    optimizer = wrapped(model, NullComm(2), algorithm="oktopk", density=None, k=100, bucket_cap_mb=cap)
    train(model, optimizer, own(0), [0])
    assert abs(optimizer.reduction.report.selected - 100) <= tolerance


def test_only_torch_optimizers_once():
    with pytest.raises(TypeError, match=r"plain torch\.optim\.Optimizer, got SGD"):
        DistributedOptimizer(wrapped(net(), NullComm(2)), comm=NullComm(2))
    with pytest.raises(ValueError, match="got 'a' twice"):
        p = nn.Parameter(torch.zeros(3))
        DistributedOptimizer(torch.optim.SGD([p], 0.1), [("a", p), ("a", p)], comm=NullComm(2))
    with pytest.raises(ValueError, match="must have all 6 parameters"):
        wrapped(net(), NullComm(2), named_parameters=[("a", p)])
    with pytest.raises(ValueError, match="is the model frozen"):
        wrapped(net().requires_grad_(False), NullComm(2))


@pytest.mark.parametrize(
    ("where", "odds"),
    [
        (slice(700, 700 + EVERY * RUN), EVERY),
        (slice(-3, None), EVERY),
        (slice(0, None, RUN), EVERY),
        (slice(900, 901), 1),
    ],
)
def test_a_change_behind_torch_is_found_by_its_bits_with_these_odds(where, odds):
    """In so many of `EVERY` steps; one that torch has counted in each."""
    weight = nn.Parameter(torch.zeros(4 * EVERY * RUN + 5))
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], 0.1), comm=NullComm(), algorithm="dense")
    (bucket,) = optimizer.reduction.buckets
    found = []
    for change in (lambda x: x.numpy().__setitem__(where, 2.0), lambda x: x[where].mul_(2.0), lambda x: None):
        for _ in range(EVERY):
            gradient = weight.grad = torch.ones_like(weight)
            bucket.gather(apart=True)
            assert weight.grad is not gradient  # autograd's memory is free for the next one
            change(weight.grad)
            found.append(bucket.changed)
    assert [sum(found[at : at + EVERY]) for at in (0, EVERY, 2 * EVERY)] == [odds, EVERY, 0]
