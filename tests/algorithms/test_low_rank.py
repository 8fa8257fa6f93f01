"""Low-rank algorithms: what is cut from a layout, what comes out of the products, and what is remembered."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.algorithms.low_rank import SameShape, parts_of
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import Layout
from sparse_mpi.testing import Trials, check_algorithm

NAMES = ("powersgd", "acpsgd")
every_algorithm = pytest.mark.parametrize("name", NAMES)


def factors_of(reducer: SparseAllreduce) -> np.ndarray:
    return reducer.state_dict()["state"]["factors"]


def test_matrices_of_one_shape_are_a_group_and_adjacent_ones_a_stack():
    parts = parts_of(Layout.of([(6, 8), (6, 2, 4), (3,), (2,), (6, 8), (8, 6), (5, 2), ()]), 2)
    assert parts.groups == (SameShape(6, 8, 2, ((0, 2), (101, 1))), SameShape(8, 6, 2, ((149, 1),)))
    assert parts.dense == ((96, 101), (197, 208))


@every_algorithm
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_laws_and_bound_hold_with_factors_of_any_rank(name, rank):
    cases = "layers", "heavy-tailed", "constant", "one-rank-zero"
    check_algorithm(ALGORITHMS[name](rank=rank), Trials((1, 3), cases, examples=5))


@every_algorithm
def test_a_matrix_whose_factors_would_be_no_smaller_is_summed_whole(ranks, name):
    layout = [(10, 8), (8, 3, 2), (7,)]

    def body(comm):
        reducer = SparseAllreduce(layout, comm=comm, algorithm=name, rank=5)
        dense = SparseAllreduce(layout, comm=comm, algorithm="dense")
        for step in range(2):
            x = np.random.default_rng([step, comm.rank]).standard_normal(135)
            assert reducer.step(x).tobytes() == dense.step(x).tobytes()
            assert not reducer.residual.any()
            assert reducer.report.traffic.messages == dense.report.traffic.messages

    ranks.run(body)


@every_algorithm
def test_memory_is_that_of_the_two_results(name):
    layout = Layout.of([(500, 400)] * 4 + [(400,)])
    algorithm = ALGORITHMS[name]()
    x = np.random.default_rng(0).standard_normal(layout.size, np.float32)
    x.setflags(write=False)
    _, state = algorithm.reduce(x, 1, NullComm(4), algorithm.init(layout, 1, 4), layout)
    tracemalloc.start()
    try:
        reduction, _ = algorithm.reduce(x, 1, NullComm(4), state, layout)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reduction.total.shape == reduction.sent.shape == x.shape
    assert peak < 2.25 * x.nbytes
