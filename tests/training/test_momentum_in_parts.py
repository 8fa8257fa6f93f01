"""An optimizer as ZeRO's: a rank keeps the momentum of its own part, updates that, and gathers the others' parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi.contrib import SparseReduceScatter

from ..reduction.test_reduce_scatter import CUTS


def data(rank):
    """A rank's 100 batches: noisy values of a smooth function."""
    rng = np.random.default_rng(rank)
    x = torch.from_numpy(rng.standard_normal((100, 8, 3)))
    return x, torch.tanh(x.sum(-1, keepdim=True)) + 0.01 * torch.from_numpy(rng.standard_normal((100, 8, 1)))


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def gradient_of(model, x, y):
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def train_in_parts(comm, density, rate, counts):
    """Return the losses and the parameters of training in which a rank has the momentum of its own part alone."""
    model, (x, y), losses = network(), data(comm.rank), []
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    reducer = SparseReduceScatter(len(weights), counts=counts, density=density, comm=comm)
    momentum = torch.zeros(int(reducer.counts[comm.rank]), dtype=weights.dtype)
    for step in range(len(x)):
        loss, g = gradient_of(model, x[step], y[step])
        momentum.mul_(0.9).add_(reducer.step(g).to_dense() / comm.size)
        part = weights[reducer.part] - rate * momentum
        gathered, _ = comm.allgatherv(part.numpy(), reducer.counts)
        weights = torch.from_numpy(gathered.copy())
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        losses.append(loss)
    return losses, weights.numpy()


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("cut", CUTS)
def test_momentum_in_parts_is_that_of_data_parallel_sgd(ranks, cut):
    model, batches = network(), [data(rank) for rank in range(ranks.size)]
    counts = CUTS[cut](sum(p.numel() for p in model.parameters()), ranks.size)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(100):
        mean = sum(gradient_of(model, x[step], y[step])[1] for x, y in batches) / ranks.size
        torch.nn.utils.vector_to_parameters(mean, grads := [torch.empty_like(p) for p in model.parameters()])
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad.data
        sgd.step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    results = ranks.run(lambda comm: train_in_parts(comm, 1.0, 0.05, counts))
    for _, weights in results:
        np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-9)
        assert weights.tobytes() == results[0][1].tobytes()


@pytest.mark.ranks(1, 2, 3, 5)
def test_at_five_percent_it_learns(ranks):
    results = ranks.run(lambda comm: train_in_parts(comm, 0.05, 0.02, None))
    for losses, weights in results:
        assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
        assert weights.tobytes() == results[0][1].tobytes()
