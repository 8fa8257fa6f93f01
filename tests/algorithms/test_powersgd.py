"""PowerSGD and ACP-SGD in training: what is recovered, what is learnt, what is sent, and what they get over."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.algorithms.low_rank import parts_of
from sparse_mpi.comm import NullComm
from sparse_mpi.predict.models import MODELS
from sparse_mpi.sparse import Layout

from .test_low_rank import NAMES, every_algorithm, factors_of

ROWS, COLUMNS = 24, 40


@pytest.mark.parametrize(("name", "needed"), [("powersgd", 1), ("acpsgd", 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_the_rank_of_the_factors_is_recovered(ranks, name, needed, dtype):
    """In one step or two, whichever factor that takes; also where its rank is lower, or zero."""
    common = np.random.default_rng(7).standard_normal((ROWS, 3))

    def body(comm):
        for rank in range(4):
            own = np.random.default_rng([rank, comm.rank]).standard_normal((rank, COLUMNS))
            x = (common[:, :rank] @ own).astype(dtype).ravel()
            reducer = SparseAllreduce([(ROWS, COLUMNS)], comm=comm, algorithm=name, rank=3, feedback="none")
            for step in range(5):
                total = reducer.step(x)
                if step + 1 >= needed:
                    tolerance = 2000 * np.finfo(dtype).eps
                    np.testing.assert_allclose(total, comm.allreduce(x), rtol=0, atol=tolerance)

    ranks.run(body)


@every_algorithm
@pytest.mark.ranks(1, 3, 4)
def test_error_feedback_sends_everything_in_the_end(ranks, name):
    """The sums of a constant gradient of full rank keep up with it: what is owed stops growing."""

    def body(comm):
        x = np.random.default_rng(comm.rank).standard_normal(ROWS * COLUMNS)
        reducer = SparseAllreduce([(ROWS, COLUMNS)], comm=comm, algorithm=name, rank=4)
        truth, arrived, missing = comm.allreduce(x), 0.0, []
        for step in range(1, 121):
            arrived = arrived + reducer.step(x)
            missing.append(np.linalg.norm(step * truth - arrived) / np.linalg.norm(truth))
        owed = comm.allreduce(reducer.residual)
        np.testing.assert_allclose(120 * truth, arrived + owed, atol=1e-9)
        return missing

    for missing in ranks.run(body):
        assert missing[-1] < 12 and max(missing[60:]) < 1.2 * max(missing[:60])


@every_algorithm
def test_a_gradient_that_was_zero_does_not_stay_so(ranks, name):
    """Nor where the rows and columns are dead that the basis of a zero matrix begins with: embeddings of rare words."""

    def body(comm):
        reducer = SparseAllreduce([(ROWS, COLUMNS)], comm=comm, algorithm=name, rank=3, feedback="none")
        x = np.random.default_rng(comm.rank).standard_normal((ROWS, COLUMNS))
        x[:5], x[:, :5] = 0, 0
        seen = []
        for factor in (0, 0, 0, 1, 1, 1):
            total = reducer.step(factor * x)
            seen.append(np.linalg.norm(total) / np.linalg.norm(comm.allreduce(x)))
            assert np.abs(factors_of(reducer)).reshape(-1, 3).max(axis=0).all()
        return seen

    for seen in ranks.run(body):
        assert seen[:3] == [0, 0, 0] and min(seen[3:]) > 0.15


def test_bytes_on_vgg16():
    """ACP-SGD sends half of what PowerSGD does, on the mean of two steps, but for what stays dense; both as bounded."""
    layout, ranks = Layout.of([shape for _, shape in MODELS["vgg16"]]), 4
    sent = {}
    for name in NAMES:
        reducer = SparseAllreduce(layout, comm=NullComm(ranks), algorithm=name, feedback="none")
        x = np.random.default_rng(0).standard_normal(layout.size, np.float32)
        sent[name] = []
        for _ in range(2):
            reducer.step(x)
            sent[name].append(reducer.report.traffic.sent)
        assert max(sent[name]) == reducer.algorithm.bound(layout, 1, ranks).payload(8, 4)
    parts = parts_of(layout, 4)
    dense = 6 * parts.dense_size  # 2 (P - 1) / P of 4 bytes
    assert sent["powersgd"][0] == sent["powersgd"][1]
    assert 2 * (sum(sent["acpsgd"]) / 2 - dense) == sent["powersgd"][0] - dense
    assert parts.dense_size == 14_728_266 - sum(math.prod(s) for s in layout.shapes if len(s) > 1)
