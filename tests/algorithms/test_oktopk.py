"""Ok-Topk: regions, balancing, and what a step costs."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms.exchange import draw_regions
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.sparse import SparseVector


def support(kind: str, rank: int, size: int, k: int) -> np.ndarray:
    """``(m,)`` ascending indices of about k entries that a rank selects out of 200 k."""
    rng, width = np.random.default_rng([3, rank]), 200 * k // size
    own = rank * width + rng.choice(width, k, replace=False)
    common = rng.choice(10 * k, k, replace=False)
    spread = rng.choice(200 * k, k, replace=False)
    parts = {
        "spread": [spread],
        "disjoint": [own],
        "own and common": [own[: k // 2], common[: k // 2]],
        "one layer": [common[: 9 * k // 10], spread[: k // 10]],
        "some": [own[:0] if rank % 2 else own],
    }
    return np.unique(np.concatenate(parts[kind])).astype(np.int32)


@pytest.mark.parametrize("size", [2, 7, 16, 64])
@pytest.mark.parametrize("kind", ["spread", "disjoint", "own and common", "one layer", "some"])
def test_no_rank_receives_far_more_than_others(kind, size):
    """Whatever the indices of each rank; the mean of all ranks' quantiles gave one rank up to half of everything."""
    k = 64 * size

    def body(comm):
        indices = support(kind, comm.rank, size, k)
        boundaries = draw_regions(SparseVector(indices, np.ones(len(indices)), 200 * k), k, comm)
        return np.histogram(indices, boundaries)[0]

    received = np.sum(World(size).run(body), axis=0)
    assert received.max() <= 1.5 * received.mean()


def stepped(comm, n, k, steps, change):
    """Yield a reducer, its state before, and the total of each step of gradients that ``change`` changes in place."""
    reducer = SparseAllreduce(n, k=k, comm=comm, algorithm="oktopk")
    for step in range(steps):
        g = np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32)
        change(g, step, comm.rank)
        yield reducer, reducer.engine.exchange.state, reducer.step(g)


def test_regions_are_redrawn_when_one_rank_receives_too_much():
    """Even if its results are as many as those of others, because what it receives cancels out."""

    def change(g, step, rank):
        g[5000:5500] = (step >= 3) * (10 if rank % 2 else -10)

    def body(comm):
        return [reducer.report.traffic.received for reducer, _, _ in stepped(comm, 64_000, 640, 8, change)]

    received = np.array(World(8).run(body))
    busiest = received.max(axis=0) / received.mean(axis=0)
    assert busiest[3] > 2 and (busiest[4:] < 1.5).all()


@pytest.mark.ranks(4)
def test_unbalanced_results_move_and_regions_follow(ranks):
    """A gradient whose large entries jump to another layer: once they move, and two steps later the regions fit again.

    No boundaries are drawn for that, which would take 3 + 16 samples of 4 bytes for each other rank.
    """
    k = 256

    def change(g, step, rank):
        g[slice(0, 1000) if step < 3 else slice(3000, 4000)] *= 1000

    def body(comm):
        seen = []
        for reducer, before, total in stepped(comm, 4000, k, 6, change):
            state = reducer.engine.exchange.state
            seen.append((np.histogram(total.indices, before.boundaries)[0].max(), state.stale, state.age))
        return seen

    for seen in ranks.run(body):
        assert seen[3][0] > 1.5 * k / 4 >= seen[5][0]
        assert [(stale, age) for _, stale, age in seen] == [(False, age + 1) for age in range(6)]


def rows(step: int, rank: int, width: int, dense: bool) -> np.ndarray:
    """Return a gradient of rows: each rank has its own, and in each step a few new ones. ``dense``: noise as well."""
    rng, g, number = np.random.default_rng([step, rank]), np.zeros(100_096, np.float32), 100_096 // width
    few, first = number // 20 * 64 // width, np.random.default_rng(rank).integers(number)
    some = (first + step * (few // 10 or 1) + rng.choice(2 * few, few, replace=False)) % number
    g.reshape(number, width)[some] = rng.standard_normal((few, width))
    if dense:
        g[50_048:] = 0.3 * rng.standard_normal(50_048)
    return g


@pytest.mark.thin(1)
@pytest.mark.parametrize(("width", "dense"), [(256, False), (64, True)])
@pytest.mark.parametrize(("wire", "limit"), [("packed", 1.35), ("packed+bf16", 0.85)])
def test_bytes_a_rank_where_ranks_have_rows_of_their_own(wire, limit, width, dense):
    """As of embeddings: selections move from step to step, and results lie elsewhere than these."""
    size, k, steps = 16, 1000, 10

    def body(comm):
        reducer, seen = SparseAllreduce(100_096, k=k, comm=comm, algorithm="oktopk", wire=wire), []
        for step in range(steps):
            reducer.step(rows(step, comm.rank, width, dense))
            traffic = reducer.report.traffic
            seen.append((traffic.sent + traffic.control, traffic.received))
        return seen[4:]

    sent, received = np.array(World(size).run(body)).mean(axis=1).T
    assert sent.mean() <= limit * 8 * k * (size - 1) / size
    assert received.max() <= 1.2 * received.mean()


def test_every_trigger_gives_the_same_sum():
    """Balancing moves results around; it does not change them."""

    def body(comm, trigger):
        x = np.random.default_rng(comm.rank).standard_normal(1000).astype(np.float32)
        x[:100] *= 100 * (comm.rank == 0)
        total, _ = sparse_allreduce(x, k=100, comm=comm, algorithm=OkTopk(trigger=trigger))
        return total.indices.tobytes(), total.values.tobytes()

    results = [World(5).run(lambda comm, t=trigger: body(comm, t)) for trigger in (1.0, 1.5, 100.0)]
    assert results[0] == results[1] == results[2]


def test_regions_are_redrawn_after_a_period():
    """However balanced: the gradients of all steps are the same."""

    def body(comm):
        made = SparseAllreduce(4000, k=200, comm=comm, algorithm=OkTopk(period=3))
        gradient = np.random.default_rng(comm.rank).standard_normal(4000).astype(np.float32)
        ages = []
        for _ in range(8):
            made.step(gradient)
            ages.append(made.engine.exchange.state.age)
        return ages

    assert World(4).run(body) == [[1, 2, 3, 1, 2, 3, 1, 2]] * 4
