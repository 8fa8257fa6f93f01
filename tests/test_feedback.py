"""Error feedback: nothing is forgotten, and nothing that is not finite is kept."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.feedback import ErrorFeedback
from sparse_mpi.sparse import SparseVector


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residual_is_what_was_not_sent(dtype):
    feedback = ErrorFeedback(4)
    assert feedback.residual.tolist() == [0, 0, 0, 0]
    gradient = np.array([1, 2, 3, 4], dtype)
    acc = feedback.accumulate(gradient)
    feedback.consume(SparseVector(np.array([1, 3], np.int32), acc[[1, 3]], 4))
    assert feedback.residual.tolist() == [1, 0, 3, 0] and feedback.residual.dtype == dtype
    assert feedback.accumulate(gradient).tolist() == [2, 2, 6, 4] and gradient.tolist() == [1, 2, 3, 4]
    feedback.consume(feedback.residual.copy())
    assert not feedback.residual.any()


def test_partial_sends_leave_the_difference():
    feedback = ErrorFeedback(2)
    feedback.accumulate(np.array([5.0, 7.0]))
    feedback.consume(SparseVector(np.array([0], np.int32), np.array([-2.0]), 2))
    assert feedback.residual.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_dropped_once_sent(bad):
    for sent in (SparseVector(np.array([0], np.int32), np.array([bad]), 2), np.array([bad, 0.0])):
        feedback = ErrorFeedback(2)
        feedback.accumulate(np.array([bad, 1.0]))
        feedback.consume(sent)
        assert feedback.residual.tolist() == [0.0, 1.0]


def test_restored_residual_is_a_copy():
    feedback, saved = ErrorFeedback(2), np.array([1.0, 2.0], np.float32)
    feedback.residual = saved
    feedback.accumulate(np.ones(2, np.float32))
    assert saved.tolist() == [1, 2] and feedback.residual.tolist() == [2, 3]
