"""A model with embeddings whose gradients are sparse tensors, and its training."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from sparse_mpi.optim import DistributedOptimizer

from . import loops

WIDTH, STEPS = 4, 4
sgd = partial(torch.optim.SGD, lr=0.1)


class Net(nn.Module):
    """Two tables whose rows have one shape, a bag with rows of another, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (nn.Embedding(60, WIDTH, sparse=True) for _ in range(2))
        self.bag = nn.EmbeddingBag(20, 3, mode="sum", sparse=True)
        self.head = nn.Linear(WIDTH + 3, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.left(tokens).mean(1) * self.right(tokens).mean(1)
        return self.head(torch.cat([words, self.bag(tokens % 20)], 1)).pow(2).mean()

    @property
    def tables(self) -> list[nn.Parameter]:
        return [self.left.weight, self.right.weight, self.bag.weight]


def tokens(rank: int, step: int) -> torch.Tensor:
    """Some tokens twice, and some on several ranks."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(3 * rank, 3 * rank + 9, (4, 5), generator=draw)


def distributed(model, comm, make=sgd, **options):
    options = {"algorithm": "dense", "momentum": "local"} | options
    return DistributedOptimizer(make(model.parameters()), model.named_parameters(), comm=comm, **options)


def loss_of(model: Net, rank: int, step: int) -> torch.Tensor:
    return model(tokens(rank, step))


def train(comm, make=sgd, steps=range(STEPS), model=None, optimizer=None, **options):
    model = model or Net()
    optimizer = optimizer or distributed(model, comm, make, **options)
    for step in steps:
        trained = loops.train(model, optimizer, lambda model, step: loss_of(model, comm.rank, step), [step])
        assert all(p.grad.is_sparse and p.grad.is_coalesced() for p in model.tables)
        whole, rows = optimizer.reduction.report.traffic, optimizer.reduction.sparse.report.traffic
        assert whole.sent > rows.sent or comm.size == 1
    return trained
