"""MiCRO: one rank a part, its threshold, its messages, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, sparse_allreduce
from sparse_mpi.algorithms.micro import MiCRO
from sparse_mpi.algorithms.partition import Partition
from sparse_mpi.reduction.arguments import ignores_k
from sparse_mpi.sparse import Layout
from sparse_mpi.testing import Case

from .conformance import train

N, K = 20_000, 400


def heterogeneous(rng, rank, ranks):
    return np.exp(rank % 3) * rng.laplace(size=N)


@pytest.mark.ranks(1, 3, 8)
def test_a_rank_chooses_in_its_part_the_largest(ranks):
    """And what is chosen is the whole sum, which all ranks clear."""

    def body(comm):
        algorithm = MiCRO()
        state = algorithm.init(Layout.of(N), K, comm.size)
        for step in range(3):
            x = np.random.default_rng([step, comm.rank]).standard_normal(N)
            (total, sent), state = algorithm.reduce(x, K, comm, state, Layout.of(N))
            part = Partition(N, comm.size, algorithm.block, step - comm.rank).part
            chosen = np.zeros(N, bool)
            chosen[total.indices] = True
            assert np.abs(part(x, 0)[part(chosen, 0)]).min() > np.abs(part(x, 0)[~part(chosen, 0)]).max()
            assert sent.values.tolist() == x[total.indices].tolist()
            assert np.allclose(total.values, comm.allreduce(x)[total.indices])

    ranks.run(body)


@pytest.mark.ranks(1, 4)
def test_the_threshold_finds_k(ranks):
    """In spite of ranks of different scale, and whatever the residual has become."""
    seen = ranks.run(lambda comm: train(comm, "micro", Case(heterogeneous, N, K), np.float32, 60))
    counts = [step.report.total / K for step in seen[0]]
    assert counts[0] == pytest.approx(1, abs=0.02) and 0.9 < np.mean(counts[-20:]) < 1.1
    assert min(counts) > 0.79 and max(counts) < 1.26


@pytest.mark.ranks(2, 4)
def test_more_that_is_not_finite_than_may_be_sent(ranks):
    def body(comm):
        x = np.full(1000, np.nan if comm.rank == 0 else 1.0)
        total, _ = sparse_allreduce(x, k=8, comm=comm, algorithm="micro")
        return total

    for total in ranks.run(body):
        assert np.isnan(total.values).all() and 8 <= total.nnz <= 16


def test_k_matters_to_micro_though_it_takes_no_selector():
    assert not ignores_k("micro") and not ignores_k("topka") and not ignores_k("adtopk")
    assert ignores_k("dense") and ignores_k("dense-bf16") and ignores_k("powersgd") and ignores_k("acpsgd")


@pytest.mark.full("many steps on 8 ranks")
@pytest.mark.ranks(8)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.full("as float32"))])
def test_the_threshold_stays_in_range_where_ranks_name_more_than_k(ranks, dtype):
    """Every rank names an entry: with k < P that is always more than k. Nor does a gradient of NaN move it away."""

    def body(comm):
        reducer = SparseAllreduce(500, k=1, comm=comm, algorithm="micro")
        for step in range(450):
            g = np.random.default_rng([step, comm.rank]).standard_normal(500).astype(dtype)
            reducer.step(np.full(500, np.nan, dtype) if 200 <= step < 240 else g)
        assert reducer.engine.exchange.state.threshold < np.iinfo(np.int32 if dtype == np.float32 else np.int64).max

    ranks.run(body)
