"""Low-rank algorithms: what is cut from a layout, what comes out of the products, and what is remembered."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.algorithms.low_rank import SameShape, parts_of
from sparse_mpi.comm import NullComm
from sparse_mpi.sparse import Layout
from sparse_mpi.testing import Case, Trials, check_algorithm

NAMES = ("powersgd", "acpsgd")
every_algorithm = pytest.mark.parametrize("name", NAMES)


def factors_of(reducer: SparseAllreduce) -> np.ndarray:
    return reducer.state_dict()["state"]["factors"]


def test_matrices_of_one_shape_are_a_group_and_adjacent_ones_a_stack():
    parts = parts_of(Layout.of([(6, 8), (6, 2, 4), (3,), (2,), (6, 8), (8, 6), (5, 2), ()]), 2)
    assert parts.groups == (SameShape(6, 8, 2, ((0, 2), (101, 1))), SameShape(8, 6, 2, ((149, 1),)))
    assert parts.dense == ((96, 101), (197, 208))


@given(
    st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=5).filter(lambda s: any(map(math.prod, s))),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["normal", "zero", "rank 1", "wide"]),
)
def test_laws_and_bound_hold_on_any_layout(shapes, rank, ranks, dtype, kind):
    layout = Layout.of(shapes)
    makes = {
        "normal": lambda rng, *_: rng.standard_normal(layout.size),
        "zero": lambda *_: np.zeros(layout.size),
        "rank 1": lambda *_: np.ones(layout.size),
        "wide": lambda rng, *_: rng.standard_normal(layout.size) * 10.0 ** rng.integers(-9, 9, layout.size),
    }
    case = Case(makes[kind], layout.size, 1, layout.shapes)
    for name in NAMES:
        check_algorithm(ALGORITHMS[name](rank=rank), Trials((ranks,), (case,), (dtype,), examples=0))


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
