"""Elect: all ranks give what they have of the same entries, and cast as few votes as it takes to name k."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.algorithms.elect.owners import EQUAL, Owners
from sparse_mpi.wire import WIRES
from sparse_mpi_bench.analysis import gradients, volume

N, K = 2000, 100
# Times 8k(P-1)/P, control included
BYTES = {"packed": 1.25, "packed+bf16": 0.75, "packed+int8": 0.5, "packed+int4": 0.39, "packed+int2": 0.33}


def counted(algorithm, made, ranks, k, steps):
    return volume.count(algorithm, "elect", made, ranks, k, steps, 0)


def dealt(size, ranks):
    """Return the numbers of all indices, and these."""
    owners = Owners(size, ranks)
    numbers = np.arange(owners.width * ranks)
    indices = owners.indices(numbers)
    return numbers[indices < size], indices[indices < size]


@pytest.mark.ranks(3, 7)
def test_the_owners_sums_are_those_of_all_votes_until_an_entry_is_elected(ranks):
    def body(comm):
        reducer, states = SparseAllreduce(N, k=K, comm=comm, algorithm="elect", wire="packed"), []
        for step in range(8):
            total = reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(N).astype(np.float32))
            assert not reducer.engine.exchange.state.my_vote_sum[total.indices].any()
            assert not reducer.residual[total.indices].any()
            states.append(
                (reducer.engine.exchange.state.my_vote_sum.copy(), reducer.engine.exchange.state.all_vote_sum.copy())
            )
        return states

    numbers, indices = dealt(N, ranks.size)
    for states in zip(*ranks.run(body), strict=True):
        mine, owned = sum(mine for mine, _ in states), np.concatenate([owned for _, owned in states])
        assert mine.any() or ranks.size < 7  # few ranks elect all that they vote for
        np.testing.assert_allclose(owned[numbers], mine[indices], atol=1e-4)


@pytest.mark.ranks(3)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_more_that_is_infinite_than_k_is_elected_in_time(ranks):
    """Nothing warns, and the votes for it are cleared."""

    def body(comm):
        x = np.random.default_rng(comm.rank).standard_normal(N).astype(np.float32)
        x[comm.rank * 2 * K : (comm.rank + 1) * 2 * K] = np.inf
        reducer = SparseAllreduce(N, k=K, comm=comm, algorithm="elect")
        for step in range(12):
            reducer.step(x if step == 0 else np.zeros_like(x))
        return reducer.engine.exchange.state.my_vote_sum, reducer.engine.exchange.state.all_vote_sum

    for sums in ranks.run(body):
        assert all(np.isfinite(vote_sum).all() for vote_sum in sums)


class Decaying(gradients.Independent):
    """The same gradient on all ranks, which shrinks from step to step: they vote for the same entries."""

    def at(self, step, rank):
        return np.float32(0.97**step) * super().at(0, 0)


class HeavyTailed(gradients.Independent):
    def at(self, step, rank):
        return np.random.default_rng([step, rank]).standard_t(1.5, self.size).astype(np.float32)


@pytest.mark.thin(1)
@pytest.mark.parametrize("wire", BYTES)
@pytest.mark.parametrize(
    ("made", "size"), [(gradients.Independent, 8), (Decaying, 5), (HeavyTailed, 16), (gradients.EmbeddingLike, 16)]
)
def test_bytes_stay_few_where_ranks_agree_and_where_messages_are_short(made, size, wire):
    found = counted(Elect(wire=WIRES[wire]), made(100_000, ranks=size), size, 1000, 5)
    assert found.over_bound <= BYTES[wire]
    assert made is not Decaying or found.energy > 0.99


@pytest.mark.parametrize(("n", "k", "size"), [(3, 2, 7), (20, 16, 7), (20, 19, 3), (6401, 6401, 100), (1000, 457, 7)])
def test_no_turn_takes_more_than_the_bound(n, k, size):
    def body(comm):
        reducer, sent = SparseAllreduce(n, k=k, comm=comm, algorithm="elect"), []
        for step in range(size):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(n).astype(np.float32))
            sent.append(reducer.report.traffic.sent)
        return max(sent), reducer.algorithm.bound(reducer.layout, k, size).payload(8, 4)

    assert all(most <= bound for most, bound in World(size).run(body))


@pytest.mark.parametrize("columns", [64, 100, 512])
def test_columns_and_rows_are_spread_over_the_owners(columns):
    numbers, indices = dealt(512 * columns, 8)
    owner = np.empty(512 * columns, int)
    owner[indices] = numbers // (64 * columns)
    for line in (owner.reshape(512, columns)[3], owner.reshape(512, columns)[:, 3]):
        assert np.bincount(line).max() <= 1.6 * len(line) / 8


@pytest.mark.ranks(1, 2, 3, 7)
@pytest.mark.parametrize("size", [1, 5, 7, 8, 20, 1000, 1003])
def test_ranks_elect_as_many_as_any_other_in_the_course_of_steps(ranks, size):
    owners = Owners(size, ranks.size)
    numbers, indices = dealt(size, ranks.size)
    assert sorted(indices) == list(range(size))
    assert owners.owned.tolist() == np.histogram(numbers, owners.boundaries)[0].tolist()
    assert owners.owned.tolist() == owners.quotas(size, 3).tolist()
    for k in {1, max(1, size // 3)}:
        elected = np.sum([owners.quotas(k, turn) for turn in range(ranks.size)], axis=0)
        even = k - k % ranks.size if k >= EQUAL * ranks.size else k
        assert (elected == even).all() or (elected >= owners.owned).any()
