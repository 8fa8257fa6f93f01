"""Tensors without a gradient on any rank: who asks, and what becomes of their momentum."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.feedback import GlobalMomentum
from sparse_mpi.sparse import Layout
from sparse_mpi.testing.steps import dense_of

from .rules import KINDS

LAYOUT = Layout.of([(6, 5), (7,), (9, 8)])
N, SKIPPED = LAYOUT.size, LAYOUT.parts[1]
PUSHING = [kind for kind, rule in KINDS.items() if rule.traits.momentum]


def vector(rank: int, step: int, absent: bool) -> np.ndarray:
    made = np.random.default_rng([step, rank]).standard_normal(N).astype(np.float32)
    if absent:
        made[SKIPPED] = 0
    return made


@pytest.mark.ranks(1, 3, 4)
def test_ranks_ask_each_other_only_when_what_is_absent_changes(ranks):
    """In steps 1 and 2 no rank has tensor 1, from step 4 on rank 0 alone lacks it, so that it must ask each time."""

    def body(comm):
        reducer = SparseAllreduce(LAYOUT, k=12, comm=comm, algorithm="dense")
        control, everywhere = [], []
        for step in range(6):
            absent = step in (1, 2) or (step > 3 and comm.rank == 0)
            reducer.absence.here = [1] if absent else []
            reducer.step(vector(comm.rank, step, absent))
            control.append(reducer.report.traffic.control)
            everywhere.append(reducer.absence.everywhere)
        return np.array(control) - control[0], everywhere

    last = [] if ranks.size > 1 else [1]
    asks = 2 * len(LAYOUT.shapes) * (ranks.size - 1) // ranks.size
    expected = [0, asks, 0, asks, asks, asks if ranks.size > 1 else 0]
    for control, everywhere in ranks.run(body):
        assert control.tolist() == expected and everywhere == [[], [1], [1], [], last, last]


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("algorithm", ["dense", "topka", "elect"])
@pytest.mark.parametrize("kind", PUSHING)
def test_momentum_rests_where_no_rank_has_a_gradient(ranks, kind, algorithm):
    """With everything sent the velocity is that of SGD, to which such a step does nothing."""

    def body(comm):
        reducer = SparseAllreduce(LAYOUT, density=1.0, comm=comm, algorithm=algorithm, feedback=KINDS[kind])
        velocity, m = np.zeros(N), KINDS[kind].traits.momentum
        for step in range(6):
            absent = step in (2, 3)
            mean = np.mean([vector(rank, step, absent) for rank in range(comm.size)], axis=0)
            reducer.absence.here = [1] if absent else []
            total = dense_of(reducer.step(vector(comm.rank, step, absent), check=True)) / comm.size
            rested = velocity[SKIPPED].copy()
            velocity = m * velocity + mean
            expected = mean + m * velocity if "nesterov" in kind else velocity.copy()
            if absent:
                velocity[SKIPPED], expected[SKIPPED] = rested, 0
            np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)

    ranks.run(body)


def test_a_momentum_of_numpy_leaves_the_precision_as_it_is():
    """A step of the rule, then a load: 0.9 of NumPy would make float64 of what is remembered."""
    rule = GlobalMomentum(np.float64(0.9), late=np.float64(0.8))
    reducer = SparseAllreduce(LAYOUT, k=12, comm=World(1).run(lambda comm: comm)[0], algorithm="topka", feedback=rule)
    reducer.step(vector(0, 0, False))
    state = reducer.state_dict()
    assert state["last"].dtype == state["residual"].dtype == np.float32
