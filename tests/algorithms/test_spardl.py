"""SparDL: its messages, what pruning captures, turns, a wire that rounds."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms.published import published
from sparse_mpi.algorithms.spardl import SparDL
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.testing import Case, Trials, check_algorithm

from .conformance import train

N, K = 20_000, 400


def layered(rng, rank, ranks):
    """Layers and rows of very different scales, as gradients have them, and much that ranks agree on."""
    scales = np.random.default_rng(5)
    scale = np.repeat(np.exp(1.5 * scales.standard_normal(20)), N // 20)
    scale *= np.repeat(np.exp(scales.standard_normal(N // 100)), 100)
    return scale * (0.6 * np.random.default_rng(7).standard_normal(N) + 0.8 * rng.standard_normal(N))


@pytest.mark.parametrize(("prune", "left"), [("block", [0, 1, 1]), ("threshold", [0, 3, 0])])
def test_a_message_is_cut_block_by_block_or_as_a_whole(prune, left):
    """Of regions of 10 elements of 30 in which all large entries are in the second one, with k = 3."""
    values = np.array([9, 8, 7, 1, 1], np.float32)
    leaving = SparseVector(np.array([10, 11, 12, 20, 21], np.int32), values, 30)
    kept = SparDL(prune=prune, slack=1.0)._pruned(leaving, np.array([0, 10, 20, 30]), 3)
    assert np.histogram(kept.indices, [0, 10, 20, 30])[0].tolist() == left


@pytest.mark.ranks(4)
def test_the_released_program_selects_a_share_of_every_block(ranks):
    """So its result has about k entries wherever they are; a global selection pruned block by block has far fewer."""

    def body(comm):
        x = layered(np.random.default_rng(comm.rank), comm.rank, comm.size).astype(np.float32)
        crowded = np.where(np.arange(N) < N // 20, x, x / 1000)
        found = []
        for algorithm in (published(SparDL), SparDL(prune="block", block=N)):
            reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=algorithm)
            found.append((reducer.step(crowded).nnz, reducer.report.selected))
        return found

    (released, selected), (pruned, of_all) = ranks.run(body)[0]
    assert selected == of_all == K and released == K and pruned < 0.4 * K


@pytest.mark.ranks(4)
def test_the_released_program_takes_back_its_own_entries_where_the_result_has_none(ranks):
    """And loses what was cut on the way of what is in the result."""

    def body(comm):
        algorithm = published(SparDL)
        x = layered(np.random.default_rng(comm.rank), comm.rank, comm.size)
        state = algorithm.init(Layout.of(N), K, comm.size)
        (total, sent), _ = algorithm.reduce(x, K, comm, state, Layout.of(N))
        there = np.isin(sent.indices, total.indices)
        assert not algorithm.traits.conserves and there.any() and not there.all()
        np.testing.assert_array_equal(sent.values, np.where(there, x[sent.indices], 0))
        given = comm.allreduce(sent.to_dense())
        return np.abs(given - total.to_dense()).sum() / np.abs(total.values).sum()

    lost = ranks.run(body)
    assert len(set(lost)) == 1 and 0 < lost[0] < 0.3


@pytest.mark.ranks(1, 3)
def test_the_released_rules_run_on_everything(ranks):
    cases = "random", "n<P", "k=1", "k=n", "n-indivisible", "all-zero"
    check_algorithm(published(SparDL), Trials((ranks,), cases, examples=0))


@pytest.mark.ranks(3)
def test_the_owner_keeps_what_it_cuts_and_owners_take_turns(ranks):
    """Of two entries that meet at the owner of their block only one may stay."""

    def body(comm):
        algorithm, x = SparDL(), np.zeros(1000)
        if comm.rank < 2:
            x[comm.rank] = 2 - comm.rank
        state, keepers = algorithm.init(Layout.of(1000), 2, comm.size), []
        for _ in range(2 * comm.size):
            (total, sent), state = algorithm.reduce(x, 2, comm, state, Layout.of(1000))
            assert total.to_dense()[:2].tolist() == [2, 0]
            keepers += np.flatnonzero(comm.allgather((x - sent.to_dense())[1:2])).tolist()
        return keepers

    assert ranks.run(body)[0] == [*range(ranks.size)] * 2


@pytest.mark.ranks(2, 5, 8)
def test_results_never_exceed_k_and_reach_it(ranks):
    case = Case(layered, N, K)
    seen = ranks.run(lambda comm: train(comm, "spardl", case, np.float32, 6))
    assert {step.report.total for steps in seen for step in steps} == {K}


def test_blocks_need_a_selector_of_rows():
    with pytest.raises(TypeError, match="selector must be alldim or interleaved with selection='block'"):
        SparDL(selection="block")
