"""A flush sends all that is owed: afterwards everything that was ever given has arrived."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce, World

N, K = 60, 5


def quarters(rank: int, step: int) -> np.ndarray:
    """Multiples of 1/4 with few digits, whose sums are exact."""
    return np.random.default_rng([step, rank]).integers(-99, 100, N).astype(np.float32) / 4


@pytest.mark.ranks(1, 3)
def test_a_flush_reports_what_it_cost_and_changes_no_later_step(ranks):
    """It costs a dense allreduce, and leaves the state of algorithm and selector alone."""

    def body(comm):
        flushed, plain = (SparseAllreduce(N, k=K, comm=comm) for _ in range(2))
        for reducer in (flushed, plain):
            reducer.step(quarters(comm.rank, 0))
        dense = SparseAllreduce(N, comm=comm, algorithm="dense")
        dense.step(quarters(comm.rank, 0))
        flushed.flush()
        assert flushed.report.traffic.sent == dense.report.traffic.sent
        assert flushed.report.selected == flushed.report.total == N
        assert flushed.state_dict()["state"].keys() == plain.state_dict()["state"].keys()
        plain.feedback.residual[...] = 0
        a, b = (reducer.step(quarters(comm.rank, 1)) for reducer in (flushed, plain))
        assert a.values.tobytes() == b.values.tobytes() and a.indices.tobytes() == b.indices.tobytes()

    ranks.run(body)


def test_a_flush_waits_for_steps_under_way_and_comes_in_the_library_that_is_asked_for():
    def body(comm):
        reducer = SparseAllreduce(N, k=K, comm=comm)
        handle = reducer.start(torch.from_numpy(quarters(comm.rank, 0)))
        flushed = reducer.flush(like=torch.zeros(()))
        total = handle.wait()
        assert isinstance(flushed, torch.Tensor) and isinstance(reducer.flush(), np.ndarray)
        arrived = flushed.index_add(0, total.indices.long(), total.values)
        expected = sum(quarters(rank, 0) for rank in range(comm.size))
        assert torch.equal(arrived, torch.from_numpy(expected))

    World(3).run(body)


def test_what_is_not_finite_leaves_the_residual_and_shows():
    def body(comm):
        reducer = SparseAllreduce(N, k=1, comm=comm, nonfinite="raise")
        gradient = quarters(comm.rank, 0)
        gradient[:2] = np.inf
        with pytest.raises(FloatingPointError):
            reducer.step(gradient)
        with pytest.raises(FloatingPointError, match="total has"):
            reducer.flush()
        assert not reducer.residual.any() and not reducer.flush().any()

    World(2).run(body)
