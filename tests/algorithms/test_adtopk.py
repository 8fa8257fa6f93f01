"""ADTopk: what goes whole and what goes by rows, in how many bytes."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms.adtopk import ADTopk
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.interleaved import Interleaved
from sparse_mpi.testing.cases import LAYERS
from sparse_mpi.testing.steps import same_bytes

from ..gradients import gradient
from ..select.coverage import coverage

K = 250


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sends_whole_tensors_once_and_rows_in_short_columns(size):
    """Dense: 105 elements; 46 in rows of one; the rest of k in rows of up to 256, a value and a byte each."""

    def body(comm):
        reducer = SparseAllreduce(LAYERS, k=K, comm=comm, algorithm=ADTopk(AllDim()))
        before = comm.traffic.copy()
        reducer.step(gradient(comm.rank, 0, LAYERS.size))
        seen = comm.traffic - before
        assert seen.sent == 2 * 4 * (30 + 7 + 1 + 60 + 40) * (comm.size - 1) // comm.size + (K - 138) * 5 * (
            comm.size - 1
        )
        return seen

    for seen in World(size).run(body):
        rounds = (size - 1).bit_length()
        assert seen.messages == 3 * rounds + 2 * rounds, "and an allreduce by which all ranks agree that they agree"
        assert seen.control == 32 * (size - 1) // size


@pytest.mark.parametrize(
    "selector",
    [
        AllDim("axis1"),
        Interleaved(),
        *(pytest.param(AllDim(dense=of), marks=pytest.mark.full("more of the same")) for of in (None, (), (1, 3, 6))),
    ],
)
def test_the_sum_is_that_of_all_selections(selector):
    """As an allgather of pairs, which is another way to the same: to the bit, where sums are exact."""

    def body(comm, algorithm):
        reducer = SparseAllreduce(LAYERS, k=K, comm=comm, algorithm=algorithm)
        draws = (np.random.default_rng([comm.rank, step]) for step in range(4))
        return [reducer.step(rng.integers(-1000, 1000, LAYERS.size) / 64) for rng in draws]

    rows, pairs = (World(3).run(lambda comm, a=a: body(comm, a(selector)))[0] for a in (ADTopk, TopkA))
    assert all(same_bytes(a, b) for a, b in zip(rows, pairs, strict=True))
    assert all(coverage(total, LAYERS) == 1 for total in rows[::2])
