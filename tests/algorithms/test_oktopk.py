"""Ok-Topk: regions, balancing, and what a step costs."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms.exchange import draw_regions
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.wire import WIRES


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


def test_regions_are_redrawn_when_one_rank_receives_too_much():
    """Even if its results are as many as those of others, because what it receives cancels out."""
    size, n, k = 8, 64_000, 640

    def body(comm):
        reducer = SparseAllreduce(n, k=k, comm=comm, algorithm="oktopk")
        received = []
        for step in range(8):
            g = np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32)
            g[5000:5500] = (step >= 3) * (10 if comm.rank % 2 else -10)
            reducer.step(g)
            received.append(reducer.report.traffic.received)
        return received

    received = np.array(World(size).run(body))
    busiest = received.max(axis=0) / received.mean(axis=0)
    assert busiest[3] > 2 and (busiest[4:] < 1.5).all()


@pytest.mark.ranks(4)
def test_unbalanced_results_move_and_regions_follow(ranks):
    """A gradient whose large entries jump to another layer: once they move, and two steps later the regions fit again.

    No boundaries are drawn for that, which would take 3 + 16 samples of 4 bytes for each other rank.
    """
    n, k = 4000, 256

    def body(comm):
        reducer = SparseAllreduce(n, k=k, comm=comm, algorithm="oktopk")
        seen = []
        for step in range(6):
            g = np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32)
            layer = slice(0, 1000) if step < 3 else slice(3000, 4000)
            g[layer] *= 1000
            boundaries = reducer.engine.exchange.state.boundaries
            total = reducer.step(g)
            state = reducer.engine.exchange.state
            seen.append((np.histogram(total.indices, boundaries)[0].max(), state.stale, state.age))
        return seen

    for seen in ranks.run(body):
        assert seen[3][0] > 1.5 * k / 4 >= seen[5][0]
        assert [(stale, age) for _, stale, age in seen] == [(False, age + 1) for age in range(6)]


@pytest.mark.thin(0)  # many steps on many ranks
@pytest.mark.parametrize("each", [1, 4, 10, 16])
def test_chance_moves_no_results_and_redraws_no_regions(each):
    """Where a rank has few results, their number varies by much: with 1 on average some rank often has 4."""
    k = 16 * each

    def body(comm):
        reducer = SparseAllreduce(100 * k, k=k, comm=comm, algorithm="oktopk")
        stale = []
        for step in range(60):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(100 * k, np.float32))
            stale.append(reducer.engine.exchange.state.stale)
        return stale[8:]

    assert np.mean(World(16).run(body)[0]) <= 0.05


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


def gradients(kind: str, k: int):
    """``make(rng, rank, ranks)`` of 100 k entries."""
    scale = np.ones(100 * k, np.float32)
    scale[30 * k : 40 * k] = 1000 if kind == "layer-skewed" else 1
    shared = np.random.default_rng(7).standard_normal(100 * k, np.float32) * (kind == "correlated")
    return lambda rng, rank, ranks: scale * (shared + rng.standard_normal(100 * k, np.float32))


@pytest.mark.thin(0)  # many steps on many ranks
@pytest.mark.parametrize(("wire", "limit"), [("packed", 1.35), ("packed+bf16", 0.85)])
@pytest.mark.parametrize("kind", ["independent", "layer-skewed", "correlated"])
@pytest.mark.parametrize(("size", "steps"), [(2, 64), (7, 64), (64, 5)])
def test_bytes_a_rank(size, steps, kind, wire, limit):
    """Payload and control, averaged over the steps from a cold start on, as a multiple of 8k(P-1)/P bytes.

    The agreement that `SparseAllreduce.step` reaches before is not the algorithm's. The first step draws regions.
    """
    k, drawing = 64 * size, 0.5
    make = gradients(kind, k)

    def body(comm):
        reducer = OkTopk(wire=WIRES[wire])
        layout, residual = Layout.of(100 * k), np.zeros(100 * k, np.float32)
        state = reducer.init(layout, k, size)
        for step in range(steps):
            residual += make(np.random.default_rng([step, comm.rank]), comm.rank, size)
            reduction, state = reducer.reduce(residual, k, comm, state, layout)
            np.subtract.at(residual, reduction.sent.indices, reduction.sent.values)
        return comm.traffic.sent + comm.traffic.control

    sent = np.array(World(size).run(body)) / steps
    assert sent.mean() <= (limit + drawing / steps) * 8 * k * (size - 1) / size
    assert sent.max() <= 1.25 * sent.mean()


@pytest.mark.thin(0)  # many steps
@pytest.mark.parametrize(("radix", "exchange"), [(None, 63), (8, 14), (2, 6)])
def test_messages_of_a_steady_step(radix, exchange):
    """The split, one allgather of control and one of results: P - 1 or (r - 1) log_r P, and 2 log2 P."""

    def body(comm):
        reducer = SparseAllreduce(64_000, k=6400, comm=comm, algorithm="oktopk", radix=radix)
        g = np.random.default_rng(comm.rank).standard_normal(64_000, np.float32)
        messages = []
        for _ in range(8):
            reducer.step(g)
            messages.append(reducer.report.traffic.messages - 2 * 6)  # agreement is not the algorithm's
        return messages

    for messages in World(64).run(body):
        assert sorted(messages)[2] == messages[-1] == exchange + 2 * 6


@pytest.mark.ranks(4)
def test_the_largest_nan_there_is_shows_on_all_ranks(ranks):
    """0x7FFFFFFF, which CUDA makes, lies above every candidate threshold."""

    def body(comm):
        reducer = SparseAllreduce(1000, k=10, comm=comm, algorithm="oktopk")
        for step in range(3):
            g = np.random.default_rng([step, comm.rank]).standard_normal(1000).astype(np.float32)
            if step == 1:
                g[100 * comm.rank : 100 * comm.rank + 30].view(np.uint32)[:] = 0x7FFFFFFF
            total = reducer.step(g)
            assert np.isnan(total.values).any() == (step >= 1) and 9 <= total.nnz <= 10

    ranks.run(body)
