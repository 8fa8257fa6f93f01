"""Replicas of a model on the ranks of a World: how they start equal, and share a gradient."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from replicas import FlatGradient, average_buffers, broadcast, identical
from sparse_mpi import SparseVector

from .small_training import network

few_ranks = pytest.mark.ranks(1, 2, 3, 4)


@few_ranks
def test_broadcast_makes_replicas_identical(ranks):
    def body(comm):
        model = network(seed=comm.rank)
        before = identical(model, comm)
        broadcast(model, comm)
        return before, identical(model, comm), model[1].weight.detach().numpy()

    before, after, weights = zip(*ranks.run(body), strict=True)
    assert all(after) and any(before) == (ranks.size == 1)
    assert all(np.array_equal(w, network(seed=0)[1].weight.detach()) for w in weights)


@pytest.mark.ranks(3)
def test_identical_sees_one_bit_on_one_rank(ranks):
    def body(comm):
        model = network()
        with torch.no_grad():
            model[4].bias[0] = -0.0 if comm.rank == 2 else 0.0
        return identical(model, comm)

    assert ranks.run(body) == [False] * 3


@few_ranks
def test_average_buffers_is_the_mean_over_ranks(ranks):
    def body(comm):
        model = network()
        model[2].running_mean += comm.rank
        average_buffers(model, comm)
        return model[2].running_mean.tolist(), int(model[2].num_batches_tracked)

    assert ranks.run(body) == [([(ranks.size - 1) / 2] * 8, 0)] * ranks.size


def forward(model):
    return model(torch.linspace(-1, 1, 20).reshape(5, 1, 2, 2)).square().sum()


@pytest.mark.parametrize("keep", [False, True])
def test_flat_gradient_is_what_autograd_writes(keep):
    model = network()
    gradient = FlatGradient(model, keep)
    seen = []
    for _ in range(2):
        gradient.clear()
        forward(model).backward()
        gradient.check()
        seen.append(gradient.flat.clone())
    assert torch.equal(seen[0], torch.cat([p.grad.reshape(-1) for p in model.parameters()]) / (1 + keep))
    assert torch.allclose(seen[1], seen[0] * (1 + keep)) and seen[0].any()


@pytest.mark.parametrize("keep", [False, True])
def test_flat_gradient_gives_the_optimizer_the_mean(keep):
    model = network()
    gradient = FlatGradient(model, keep)
    gradient.flat += 7

    def sparse(*at):
        return SparseVector(torch.tensor(at, dtype=torch.int32), torch.tensor([6.0, 3.0]), len(gradient.flat))

    for total in (sparse(1, 40), sparse(0, 40), torch.full_like(gradient.flat, 6), sparse(1, 2), sparse(2, 3)):
        with gradient.mean(total, 3):
            grads = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert torch.equal(grads * 3, total.to_dense() if isinstance(total, SparseVector) else total)
        gradient.check()
        assert (gradient.flat == 7).all() == keep
