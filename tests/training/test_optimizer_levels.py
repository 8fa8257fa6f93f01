"""The optimizer on hosts of several ranks: its reducers have two levels, with momentum and with Adam's moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_mpi.algorithms.two_level import TwoLevel
from sparse_mpi.optim import DistributedOptimizer

KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
}


def trained(comm, kind: str, **options):
    """Return the mean loss of the last 10 of 40 steps, and the bytes of the parameters."""
    model, losses = torch.nn.Linear(20, 5), []
    target = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.weight.fill_(0.01)
        model.bias.zero_()
    optimizer = DistributedOptimizer(KINDS[kind](model.parameters()), model.named_parameters(), comm=comm, **options)
    drawn = torch.Generator().manual_seed(100 + comm.rank)
    for _ in range(40):
        x = torch.randn(32, 20, generator=drawn)
        loss = torch.nn.functional.cross_entropy(model(x), (x @ target).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    placed = {type(bucket.reducer.engine.exchange.placed) for bucket in optimizer.reduction.buckets}
    return np.mean(losses[-10:]), b"".join(p.detach().numpy().tobytes() for p in model.parameters()), placed


@pytest.mark.thin(1)
@pytest.mark.parametrize("algorithm", ["elect", "oktopk"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_as_in_one_level(kind, algorithm):
    one, two = (
        World(4, 2).run(lambda comm, o=options: trained(comm, kind, algorithm=algorithm, density=0.1, **o))
        for options in ({"levels": 1}, {})
    )
    assert len({parameters for _, parameters, _ in two}) == 1
    assert all(placed == {TwoLevel} for _, _, placed in two) and not any(TwoLevel in placed for _, _, placed in one)
    assert np.mean([loss for loss, _, _ in two]) < 1.05 * np.mean([loss for loss, _, _ in one])
