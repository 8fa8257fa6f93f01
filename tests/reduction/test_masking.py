"""Momentum is masked where most of what a rank had has left it, and nowhere else: the collective may keep or round."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import MomentumCorrection, SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import Layout
from sparse_mpi.testing.steps import dense_of

LAYOUT = Layout.of([(40, 50), (50,), (20, 30), ()])
# Ways to reduce; after WHOLLY, those in which a rank keeps for itself some of what it selected, or rounds it to little
WHOLLY = {"topka": {}, "oktopk": {}, "adtopk": {}}
WAYS = WHOLLY | {
    "gtopk": {},
    "spardl": {},
    "oktopk-2level": {},
    "powersgd": {"rank": 2},
    "topka, rounding": {"algorithm": "topka", "wire": "packed+int8"},
    "oktopk, rounding": {"algorithm": "oktopk", "wire": "packed+int8"},
}


def gradient(rank: int, step: int) -> np.ndarray:
    """Heavy tails, so that one block of values has large and small ones."""
    return np.random.default_rng([step, rank]).standard_t(3, LAYOUT.size).astype(np.float32) ** 5


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("way", WAYS)
def test_momentum_is_masked_where_most_of_it_left_this_rank(ranks, way):
    options = {"algorithm": way} | WAYS[way]

    def body(comm):
        reducer = SparseAllreduce(LAYOUT, k=100, comm=comm, feedback=MomentumCorrection(0.5), **options)
        velocity, masked, kept = np.zeros(LAYOUT.size, np.float32), 0, 0
        for step in range(4):
            velocity = 0.5 * velocity + gradient(comm.rank, step)
            acc = reducer.residual + velocity
            reducer.step(gradient(comm.rank, step), check=True)
            left, after = 2 * abs(reducer.residual) < abs(acc), reducer.feedback.velocity
            for start, size in zip(LAYOUT.offsets, LAYOUT.sizes, strict=True):
                tensor = slice(start, start + size)
                expected = np.where(left[tensor] & ~left[tensor].all(), 0, velocity[tensor])
                np.testing.assert_allclose(after[tensor], expected, rtol=1e-4, atol=1e-4)
            masked += np.count_nonzero(after == 0)
            kept += np.count_nonzero((reducer.residual != acc) & (after != 0))
            velocity = after.copy()
        return masked, kept

    masked, kept = np.sum(ranks.run(body), axis=0)
    assert masked > 0 and (kept > 0 or way in WHOLLY)


def test_a_tensor_that_is_sent_whole_keeps_its_momentum():
    """As in SGD, whose momentum makes 410 out of 50 gradients of 1; with everything masked it would be 50."""
    reducer = SparseAllreduce([(20, 10), (10,)], k=30, comm=NullComm(), algorithm="adtopk", feedback="dgc")
    arrived = sum(dense_of(reducer.step(np.ones(210, np.float32)))[200:] for _ in range(50))
    np.testing.assert_allclose(arrived, 10 * 50 - 90 * (1 - 0.9**50), rtol=1e-4)
