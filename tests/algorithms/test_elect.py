"""Elect: all ranks give what they have of the same entries, and cast as few votes as it takes to name k."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms.elect import Elect

N, K = 2000, 100


def selected(comm, make) -> list[int]:
    """Return the votes of this rank in each of 30 steps; assert that what is elected leaves no rank's residual."""
    reducer, votes = SparseAllreduce(N, k=K, comm=comm, algorithm="elect"), []
    for step in range(30):
        total = reducer.step(make(np.random.default_rng([step, comm.rank]), step), check=True)
        assert total.nnz <= K and (step > 0 or total.nnz >= 0.9 * K)
        assert not reducer.residual[total.indices].any()
        votes.append(reducer.report.selected)
    return votes


@pytest.mark.ranks(8)
def test_ranks_that_differ_need_few_votes_each(ranks):
    for votes in ranks.run(lambda comm: selected(comm, lambda rng, step: rng.standard_normal(N))):
        assert votes[0] == K and max(votes[-5:]) <= K // 3


@pytest.mark.ranks(3, 8)
def test_ranks_that_agree_need_all_their_votes(ranks):
    def same(rng, step):
        return np.random.default_rng(step).standard_normal(N)

    for votes in ranks.run(lambda comm: selected(comm, same)):
        assert min(votes) >= 0.7 * K


@pytest.mark.parametrize(
    ("option", "value"), [("votes", 0), ("votes", 1.5), ("period", 0), ("trigger", 0.5), ("radix", 1)]
)
def test_bad_options(option, value):
    with pytest.raises(ValueError, match=f"{option} must be .*, got {value}"):
        Elect(**{option: value})
