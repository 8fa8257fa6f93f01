"""What every feedback rule must do beside obeying the laws, whatever it remembers: see also `test_memories`."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.sparse import Layout
from sparse_mpi.testing import Trials, check_feedback

from .rules import KINDS

LAYOUT = Layout.of([(12, 10), (7,), (), (9, 8)])
N, K = LAYOUT.size, 12

few_ranks = pytest.mark.ranks(1, 3)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_rule = pytest.mark.parametrize("kind", KINDS)


def vector(rank: int, step: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng([step, rank]).integers(-50, 50, N).astype(np.float32)


def reducer_of(comm, kind, name="oktopk", **options) -> SparseAllreduce:
    return SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=name, feedback=KINDS[kind], **options)


def remembered(reducer) -> dict[str, np.ndarray]:
    return whole_state(reducer.feedback)


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.thin(1)
@every_rule
@pytest.mark.parametrize("case", ["random", "one-rank-zero", "ties", "layers", "k=1", "n<P"])
def test_all_laws(ranks, kind, case):
    check_feedback(KINDS[kind], Trials((ranks,), (case, "nonfinite"), examples=0))


@few_ranks
@every_algorithm
@every_rule
@pytest.mark.thin(1)
def test_steps_that_are_dense_share_what_is_remembered(ranks, name, kind):
    """A dense warm-up, sparse steps, one of more entries, and a dense one again: both laws hold in each."""

    def body(comm):
        reducer = reducer_of(comm, kind, name)
        for step, (dense, density) in enumerate([(True, None), (False, None), (False, 0.3), (True, None)]):
            reducer.step(vector(comm.rank, step), density=density, dense=dense, check=True)

    ranks.run(body)


def test_a_flush_leaves_momentum_as_it_is():
    reducer = reducer_of(NullComm(), "dgc")
    for step in range(3):
        reducer.step(vector(0, step))
    before = remembered(reducer)["velocity"].tobytes()
    reducer.flush()
    assert remembered(reducer)["velocity"].tobytes() == before
