"""Elect with a lag: entries are elected before the gradient is there, in the background or in the step itself."""

from __future__ import annotations

from time import sleep

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.wire import WIRES

from ..gradients import gradient

N, K = 1000, 40


def reducer(comm, **options) -> SparseAllreduce:
    return SparseAllreduce(N, k=K, comm=comm, algorithm="elect", lag=1, **options)


@pytest.mark.ranks(1, 3, 8)
@pytest.mark.parametrize("wire", WIRES)
def test_laws_hold_and_the_gradient_of_a_step_does_not_elect(ranks, wire):
    def body(comm):
        lagging = reducer(comm, wire=wire)
        lagging.step(gradient(comm.rank, 0, N), check=True)
        left = lagging.residual.copy()
        same = [lagging.step(gradient(comm.rank, 1, N), check=True).indices]
        other = reducer(comm, wire=wire)
        other.step(gradient(comm.rank, 0, N))
        np.testing.assert_array_equal(left, other.residual)
        same.append(other.step(100 * gradient(comm.rank, 2, N)).indices)
        return same

    for first, second in ranks.run(body):
        assert len(first) >= 0.9 * K
        np.testing.assert_array_equal(first, second)


@pytest.mark.ranks(3)
def test_in_the_background_the_same_is_elected_and_counted(ranks):
    def body(comm):
        plain, ahead = reducer(comm), reducer(comm)
        for step in range(8):
            totals = [one.step(gradient(comm.rank, step, N)) for one in (plain, ahead)]
            np.testing.assert_array_equal(totals[0].indices, totals[1].indices)
            np.testing.assert_array_equal(totals[0].values, totals[1].values)
            counted = [(r.traffic.sent, r.traffic.control, r.selected) for r in (plain.report, ahead.report)]
            assert counted[0] == counted[1]
            ahead.prepare()

    ranks.run(body)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_that_stops_between_two_steps_goes_on_to_the_bit(ranks, ahead):
    def body(comm):
        straight, resumed = reducer(comm), reducer(comm)
        for step in range(4):
            straight.step(gradient(comm.rank, step, N))
        if ahead:
            straight.prepare()
        resumed.load_state_dict(straight.state_dict())
        for step in range(4, 7):
            totals = [one.step(gradient(comm.rank, step, N)) for one in (straight, resumed)]
            np.testing.assert_array_equal(totals[0].indices, totals[1].indices)
            np.testing.assert_array_equal(totals[0].values, totals[1].values)

    ranks.run(body)


@pytest.mark.ranks(3)
def test_another_k_and_nothing_left_elect_at_once(ranks):
    def body(comm):
        lagging = reducer(comm)
        counts = [lagging.step(np.zeros(N, np.float32)).nnz]
        counts += [lagging.step(gradient(comm.rank, step, N), k=k).nnz for step, k in enumerate((K, 2 * K, 2 * K, K))]
        return counts, SparseAllreduce(N, k=K, comm=comm, algorithm="elect", lag=1, feedback="none").step(
            gradient(comm.rank, 0, N)
        ).nnz

    for counts, without_residual in ranks.run(body):
        assert counts[0] == 0 and without_residual > 0
        assert all(0.3 * k <= nnz <= k for nnz, k in zip(counts[1:], (K, 2 * K, 2 * K, K), strict=True))


def test_a_lag_is_0_or_1():
    with pytest.raises(ValueError, match=r"lag must be in \[0, 1\] steps, got 2"):
        Elect(lag=2)


@pytest.mark.ranks(3)
def test_a_reducer_is_made_after_what_another_has_prepared(ranks):
    """Nothing else may use a communicator until the work in its background is done."""

    def body(comm):
        done = []
        progress_thread_of(comm).start(lambda: (sleep(0.02), comm.allreduce(np.ones(9)), done.append(1)))
        reducer(comm)
        assert done == [1]

    ranks.run(body)
