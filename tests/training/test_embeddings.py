"""`DistributedOptimizer` and embeddings with ``sparse=True``: exact, row by row, and never dense.

`test_density_one` and the doors train with them as torch does.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer

from .embedding_net import tokens, train
from .loops import equal

pytestmark = pytest.mark.ranks(1, 2, 3, 5)


@pytest.fixture(autouse=True)
def nothing_becomes_dense(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise AssertionError("a sparse tensor became dense")

    monkeypatch.setattr(torch.Tensor, "to_dense", refuse)


def test_nothing_of_the_tables_size_is_made_or_sent(ranks):
    """Of 10^7 rows of 64 numbers: but for the table itself, which is memory that is never written to."""
    rows, width = 10**7, 64

    def run(comm, rows):
        table = nn.Embedding(rows, width, sparse=True, _weight=torch.zeros(1).expand(rows, width))
        table.weight = nn.Parameter(torch.empty(0).set_(torch.zeros(1).untyped_storage(), 0, (rows, width), (0, 0)))
        optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), comm=comm)
        for step in range(2):
            optimizer.zero_grad()
            (table(tokens(comm.rank, step)) + 1).pow(2).sum().backward()
            optimizer.synchronize()
            optimizer.reduction.stepped()
        return table.weight.grad, optimizer.reduction.sparse.report.traffic.sent

    few = ranks.run(lambda comm: run(comm, 2000))  # what torch imports for its first optimizer is no part of a step
    tracemalloc.start()
    try:
        found = ranks.run(lambda comm: run(comm, rows))
        assert tracemalloc.get_traced_memory()[1] < rows
    finally:
        tracemalloc.stop()
    for (_, small), (gradient, sent) in zip(few, found, strict=True):
        assert gradient.shape == (rows, width) and gradient._nnz() <= 20 * ranks.size
        # A key has thirteen more bits
        assert sent <= 1.15 * small and sent <= 2 * gradient._nnz() * (4 * width + 8)


def test_a_sum_is_not_divided(ranks):
    sums = ranks.run(lambda comm: train(comm, lambda p: torch.optim.SGD(p, lr=0.1 / comm.size), op="sum"))
    np.testing.assert_allclose(sums[0], ranks.run(train)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_half_precision_is_added_up_in_single(ranks, dtype):
    def run(comm):
        table = nn.Embedding(10, 3, sparse=True, dtype=dtype)
        nn.init.ones_(table.weight)
        optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), comm=comm)
        (table(torch.tensor([2])) * (1 if comm.rank == 0 else 2**-9)).sum().backward()
        optimizer.synchronize()
        assert table.weight.grad.dtype == dtype
        return float(table.weight.grad._values()[0, 0])

    exact = (1 + 2**-9 * (ranks.size - 1)) / ranks.size
    assert ranks.run(run) == [float(torch.tensor(exact, dtype=torch.float64).to(dtype))] * ranks.size


def test_gradients_of_several_sparse_dimensions(ranks):
    """Of ``gather``, whose every element has a place of its own."""

    def run(comm, sparse):
        x = nn.Parameter(torch.arange(12.0).reshape(3, 4))
        optimizer = DistributedOptimizer(torch.optim.SGD([x], lr=0.1), comm=comm, algorithm="dense")
        for _ in range(2):
            optimizer.zero_grad()
            x.gather(1, torch.tensor([[comm.rank % 4], [1], [1]]), sparse_grad=sparse).pow(2).sum().backward()
            optimizer.step()
        assert x.grad.is_sparse == sparse
        return x.detach().numpy()

    results = ranks.run(lambda comm: run(comm, True))
    np.testing.assert_allclose(results[0], ranks.run(lambda comm: run(comm, False))[0], rtol=1e-5, atol=1e-6)
    assert equal(results)


def test_k_is_for_what_is_not_sparse():
    """Of a large table and a small layer, the layer sends k, not the share of k that it is of all entries."""
    table, layer = nn.Embedding(10**5, 4, sparse=True), nn.Linear(40, 30)
    optimizer = DistributedOptimizer(
        torch.optim.SGD([*table.parameters(), *layer.parameters()], lr=0.1), comm=NullComm(2), algorithm="topka", k=100
    )
    for _ in range(2):
        optimizer.zero_grad()
        (layer(torch.ones(2, 40)).pow(2).sum() + table(torch.tensor([1])).sum()).backward()
        optimizer.step()
    (bucket,) = optimizer.reduction.buckets
    assert bucket.reducer.report.selected == 100
