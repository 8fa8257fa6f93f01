"""Copies of residuals: nothing is sent twice, and no more is lost than the documentation says."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import ElasticAllreduce, TooFewRanks
from sparse_mpi.testing.steps import dense_of
from sparse_mpi.wire import BitPacked

from .survivors import RANKS, SIZE, STEPS, gradient, train

RULES = sorted(ALGORITHMS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("rank", "copy_every"), [(1, 3), pytest.param(4, 1, marks=pytest.mark.full("another rank, other copies"))]
)
def test_nothing_is_sent_twice(rule, rank, copy_every):
    """All gradients are positive: what comes out of an entry is at most what was put in."""
    traits = ALGORITHMS[rule]().traits
    if not traits.conserves:
        pytest.skip("sends other values than it has")

    def main(comm):
        options = {"copy_every": copy_every, "copy": "exact", "algorithm": rule}
        reducer = ElasticAllreduce(SIZE, density=0.03, comm=comm, **options)
        number, totals = comm.rank, np.zeros(SIZE)
        for step in range(16):
            totals += dense_of(reducer.step(np.abs(gradient(number, step))))
        return totals, reducer.residual.copy()

    left = [result for result in World(RANKS, leave={rank: 9}).run(main) if result is not None]
    found = left[0][0] + sum(residual for _, residual in left)
    put_in = sum(np.abs(gradient(r, step)) for r in range(RANKS) for step in range(16) if r != rank or step < 9)
    # What the lost rank had rounded up, by less than a step of eight bits, nobody takes back
    rounded = 0 if traits.lossless else put_in.max() / 127
    assert (found <= put_in + 1e-3 * put_in.max() + rounded).all()
    assert found.sum() >= 0.88 * put_in.sum()


@pytest.mark.parametrize("algorithm", ["oktopk", Elect(wire=BitPacked()), "gtopk", "dense"], ids=str)
@pytest.mark.parametrize("rank", [0, 2, 4])
def test_with_a_copy_of_each_step_nothing_is_lost(algorithm, rank):
    """All values are whole numbers, so that sums are exact."""
    left = [result for result in train({rank: 5}, algorithm, copy_every=1, copy="exact") if result]
    found = sum(total for total, _ in left[0][0]) + sum(residual for _, residual, *_ in left)
    put_in = sum(gradient(r, step) for r in range(RANKS) for step in range(STEPS) if r != rank or step < 5)
    np.testing.assert_array_equal(found, put_in)
    assert sorted(heirs for *_, heirs in left) == [[], [], [], [rank]]


def test_copies_fade_as_residuals_do():
    """The last copy of most parts is old when the rank is lost; what is inherited is not more than it had."""

    def main(comm):
        options = {"feedback": "leaky", "algorithm": "topka", "copy_every": 50, "copy": "exact"}
        reducer = ElasticAllreduce(SIZE, density=0.01, comm=comm, **options)
        for step in range(30):
            reducer.step(np.ones(SIZE, np.float32) if step == 0 else np.zeros(SIZE, np.float32))
        return float(np.abs(reducer.residual).sum())

    alone = sum(World(RANKS).run(main))
    left = [result for result in World(RANKS, leave={2: 25}).run(main) if result is not None]
    assert sum(left) <= alone + 1e-3


def test_float64_is_copied_as_it_is():
    def main(comm):
        reducer = ElasticAllreduce(50, density=0.1, comm=comm, copy_every=1, copy="exact", algorithm="topka")
        total, rank = np.zeros(50), comm.rank
        for step in range(6):
            total += reducer.step(np.full(50, 1 + 2.0**-40 * (rank + step))).to_dense()
        return total, reducer.residual.copy()

    left = [result for result in World(3, leave={0: 3}).run(main) if result is not None]
    found = left[0][0] + sum(residual for _, residual in left)
    put_in = sum(1 + 2.0**-40 * (rank + step) for rank in range(3) for step in range(6) if rank or step < 3)
    np.testing.assert_allclose(found, put_in, rtol=1e-14)


def test_without_copies_the_residual_is_lost_and_nobody_inherits():
    left = [result for result in train({2: 5}, copy_every=0) if result]
    assert all(inherited == [] for *_, inherited in left)


@pytest.mark.parametrize("call", [-1, 1, 4])
def test_after_too_few_ranks_the_gradient_is_in_the_residual(call):
    def main(comm):
        reducer = ElasticAllreduce(SIZE, density=0.05, comm=comm, min_ranks=3, copy_every=1, copy="exact")
        with pytest.raises(TooFewRanks, match=r"lost before step \d; 2 ranks.*min_ranks is 3"):
            for step in range(STEPS):
                reducer.step(gradient(reducer.team.number, step))
        return reducer.state_dict()["residual"]

    totals = [total for total, _ in train({}, steps=3, ranks=3, copy_every=1, copy="exact")[0][0]]
    left = [result for result in World(3, leave={1: (3, call)}).run(main) if result is not None]
    put_in = sum(gradient(rank, step) for rank in range(3) for step in range(4) if rank != 1 or step < 3)
    np.testing.assert_array_equal(sum(left) + sum(totals), put_in)


@pytest.mark.parametrize("rule", RULES)
def test_what_gives_nothing_away_sends_nothing_but_the_result(rule):
    """In steps without a part of a copy the next rank is told nothing."""
    kept = []

    def main(comm):
        reducer = SparseAllreduce(SIZE, density=0.03, comm=comm, algorithm=rule)
        for step in range(6):
            drawn = np.random.default_rng([comm.rank, step]).standard_normal(SIZE).astype(np.float32)  # none cancel
            before = reducer.residual + drawn
            total = dense_of(reducer.step(drawn))
            kept.append(not ((reducer.residual != before) & (total == 0)).any())
        return reducer.algorithm.traits.delegates_residual

    gives_away = World(RANKS).run(main)[0]
    assert gives_away or all(kept) or not ALGORITHMS[rule]().traits.conserves
