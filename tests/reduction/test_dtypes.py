"""Gradients may change from float32 to float64 and back; acc has the same dtype on every rank."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World, sparse_allreduce
from sparse_mpi.algorithms.published import StaleSelector
from sparse_mpi.feedback import FEEDBACKS
from sparse_mpi.testing.steps import dense_of

SHAPES, SIZE = [(10, 10)], 100


def gradient(step, rank, dtype):
    return np.random.default_rng([step, rank]).standard_normal(SIZE).astype(dtype)


@pytest.mark.thin(1)
@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_may_change_their_dtype(algorithm, feedback):
    kinds = ["f8", "f8", "f4", "f4", "f8"]

    def run(comm):
        reducer = SparseAllreduce(SHAPES, k=5, comm=comm, algorithm=algorithm, feedback=feedback)
        return [reducer.step(gradient(s, comm.rank, kind), check=True) for s, kind in enumerate(kinds)]

    for totals in zip(*World(3).run(run), strict=True):
        assert len({dense_of(total).tobytes() for total in totals}) == 1


@pytest.mark.parametrize("kinds", [("f4", "f8"), ("f8", "f4")], ids=str)
def test_after_a_change_of_dtype_a_threshold_starts_afresh(kinds):
    """The published rule keeps a threshold for a period; of other numbers it would select nearly all or nothing."""

    def run(comm):
        options = {"algorithm": "topka", "selector": made}
        reducer = SparseAllreduce(SIZE, k=5, comm=comm, feedback="none", **options)
        for step in range(3):
            reducer.step(gradient(step, comm.rank, kinds[0]))
        x = gradient(3, comm.rank, kinds[1])
        return dense_of(reducer.step(x)), dense_of(sparse_allreduce(x, k=5, comm=comm, **options).total)

    made = StaleSelector()
    for after, alone in World(2).run(run):
        np.testing.assert_array_equal(after, alone)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_ranks_that_take_over_nothing_have_the_dtype_of_the_others(ranks, feedback):
    def save(comm):
        reducer = SparseAllreduce(SIZE, k=5, comm=comm, feedback=feedback)
        reducer.step(gradient(0, comm.rank, "f8"))
        return reducer.state_dict()

    states = World(2).run(save)

    def run(comm):
        reducer = SparseAllreduce(SIZE, k=5, comm=comm, feedback=feedback)
        reducer.take_over(states[comm.rank : comm.rank + 1], 2)
        return [reducer.step(gradient(step, comm.rank, "f4")) for step in (1, 2)]

    for totals in zip(*ranks.run(run), strict=True):
        assert len({dense_of(total).tobytes() for total in totals}) == 1
        assert {dense_of(total).dtype for total in totals} == {np.dtype("f4" if feedback == "none" else "f8")}


def test_ranks_whose_acc_differs_in_dtype_are_told_so():
    def run(comm):
        reducer = SparseAllreduce(SIZE, k=5, comm=comm)
        with pytest.raises(ValueError, match="acc=float64"):
            reducer.step(gradient(0, comm.rank, "f8" if comm.rank else "f4"))

    World(2).run(run)
