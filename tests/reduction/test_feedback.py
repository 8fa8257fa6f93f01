"""Memories: nothing is forgotten that should be kept, nothing that is not finite is, and each follows its paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.feedback import FEEDBACKS, GlobalMomentum, MomentumCorrection
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.sparse import Layout

from .feedback_steps import RANKS, STEPS, consume, joined, picked, started


@given(STEPS, st.booleans(), st.booleans())
def test_momentum_correction_follows_the_paper(steps, nesterov, masking):
    feedback = started(MomentumCorrection(0.5, nesterov, masking))
    u, v = np.zeros(5), np.zeros(5)
    for gradient, chosen in steps:
        u = 0.5 * u + gradient
        v = v + (gradient + 0.5 * u if nesterov else u)
        acc = joined(feedback, gradient)
        assert acc.tolist() == v.tolist() and feedback.velocity.tolist() == u.tolist()
        consume(feedback, picked(acc, chosen))
        mask = np.array([i not in chosen for i in range(5)])
        u, v = u * mask if masking and mask.any() else u, v * mask  # what is sent whole leaves nothing that is late
        assert feedback.residual.tolist() == v.tolist() and feedback.velocity.tolist() == u.tolist()


@given(STEPS, st.sets(st.integers(0, 4)))
def test_global_momentum_is_that_of_the_totals(steps, others):
    """What another rank sent, 1 at ``others``, comes back as momentum too, shared out equally among the ranks."""
    feedback, owed = started(GlobalMomentum(0.5)), np.zeros(5)
    for gradient, chosen in steps:
        owed = owed + gradient
        acc = joined(feedback, gradient)
        assert acc.tolist() == owed.tolist()
        part = picked(acc, chosen)
        before = acc.copy()
        total = part.to_dense() + np.isin(np.arange(5), list(others))
        feedback.consume(part, picked(total, chosen | others))
        owed = owed - part.to_dense() + 0.5 * total / RANKS
        assert feedback.residual.tolist() == owed.tolist()
        assert feedback.contribution(before, part).tolist() == part.to_dense().tolist()


@pytest.mark.parametrize("name", FEEDBACKS)
def test_starting_leaves_the_given_instance_empty(name):
    kind = FEEDBACKS[name]()
    first, second = kind.start(Layout.of(2), RANKS), kind.start(Layout.of(3), RANKS)
    consume(first, picked(joined(first, np.ones(2)), {0}))
    assert len(first.residual) == 2 and second.residual.tolist() == [0, 0, 0]
    assert repr(first) == repr(kind) == repr(replace(kind))


@pytest.mark.parametrize("name", FEEDBACKS)
def test_loaded_state_is_a_copy(name):
    saved = {array: np.array([1.0, 2.0], np.float32) for array in ("residual", "velocity", "last")}
    feedback = started(FEEDBACKS[name](), 2)
    check_sizes(saved, whole_state(feedback), 2)
    feedback.load(saved)
    joined(feedback, np.ones(2, np.float32))
    for array in whole_state(feedback).values():
        array += 7
    assert all(array.tolist() == [1, 2] for array in saved.values())
