"""Training by a `DistributedOptimizer` whose ranks are lost on the way: the survivors' models stay the same."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from sparse_mpi.collectives import inline
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.optim import DistributedOptimizer

from ..training.loops import net, train, weights

RANKS, STEPS = 4, 6
KINDS = {"sgd": partial(torch.optim.SGD, lr=0.3, momentum=0.9), "adam": partial(torch.optim.Adam, lr=0.02)}


def batch(rank, step):
    draw = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 8, generator=draw)
    return x, (x.sum(1, keepdim=True) > 0).float()


def trained(leave, kind="sgd", survive=True):
    def main(comm):
        team, model = Team(comm), net(0, (8, 32, 1))

        def loss(model, step):
            x, y = batch(team.number, step)
            return torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)

        ranks = {"comm": team, "copy_every": 2} if survive else {"comm": comm}
        options = {"density": 0.2, "bucket_cap_mb": 5e-4} | ranks
        optimizer = DistributedOptimizer(KINDS[kind](model.parameters()), model.named_parameters(), **options)
        before = loss(model, 0).item()
        train(model, optimizer, loss, range(STEPS))
        optimizer.flush()
        lost = [rank for departure in team.departures for rank in departure.ranks]
        return weights(model), (before, loss(model, 0).item()), lost

    return [result for result in World(RANKS, leave=leave).run(main) if result is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "leave", [{2: 4}, {0: (5, 3)}, {1: (3, 4), 3: (8, 2)}, {3: (7, 6), 0: (7, 8)}], ids=lambda leave: str(sorted(leave))
)
def test_survivors_have_the_same_model(kind, leave):
    left = trained(leave, kind)
    assert len(left) == RANKS - len(leave)
    for parameters, _, lost in left:
        assert parameters.tobytes() == left[0][0].tobytes() and np.isfinite(parameters).all()
        assert sorted(lost) == sorted(leave)
    before, after = np.mean([losses for _, losses, _ in left], axis=0)
    assert after < before


def test_a_loss_within_a_reduction_is_a_loss_before_it():
    planned = trained({1: 6})[0][0].tobytes()
    for call in (0, 2, 6):
        assert {parameters.tobytes() for parameters, *_ in trained({1: (6, call)})} == {planned}


def test_without_a_loss_training_is_what_it_is_without_a_team():
    alone = {parameters.tobytes() for parameters, *_ in trained({}, survive=False)}
    assert {parameters.tobytes() for parameters, *_ in trained({})} == alone


@pytest.mark.thin(1)
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("room", [inline.MOST, 0])
def test_survivors_add_up_the_rows_of_embeddings(monkeypatch, call, room):
    """Whether a rank is lost before a call of their collective or within it: a sum that fails is done again.

    Where there is no room for few rows beside the arguments, a step makes more calls.
    """
    monkeypatch.setattr(inline, "MOST", room)

    def main(comm):
        team = Team(comm)
        torch.manual_seed(0)
        table, seen = torch.nn.Embedding(40, 3, sparse=True), []
        optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.1), comm=team)
        for step in range(STEPS):
            optimizer.zero_grad()
            table(torch.tensor([team.number, 7, 10 + step])).sum().backward()
            optimizer.step()
            rows = table.weight.grad.indices().flatten().tolist()
            seen.append((rows, table.weight.grad.values()[:, 0].tolist()))
        return table.weight.detach().numpy().tobytes(), seen

    left = [found for found in World(RANKS, leave={1: (4, call)}).run(main) if found is not None]
    assert len(left) == RANKS - 1 and len({parameters for parameters, _ in left}) == 1
    for step, (rows, values) in enumerate(left[0][1]):
        there = [0, 2, 3] if 1 not in rows else [0, 1, 2, 3]
        assert rows == [*there, 7, 10 + step]
        np.testing.assert_allclose(values, [1 / len(there)] * len(there) + [1, 1], rtol=1e-6)
    assert [1 in rows for rows, _ in left[0][1]] == sorted([1 in rows for rows, _ in left[0][1]], reverse=True)
    assert 1 in left[0][1][0][0] and 1 not in left[0][1][-1][0]
