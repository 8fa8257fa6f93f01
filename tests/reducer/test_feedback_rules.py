"""Rules that do more than keep what was not sent: each follows its paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.feedback import FEEDBACKS, LeakyFeedback

from .feedback_steps import STEPS, consume, joined, picked, started


@given(STEPS, st.booleans())
def test_leaky_feedback_keeps_its_share_of_what_is_not_sent(steps, in_place):
    feedback, owed, buffer = started(LeakyFeedback(0.5), in_place=in_place), np.zeros(5), np.zeros(5)
    assert feedback.leak == 0.5
    for gradient, chosen in steps:
        buffer += gradient  # as autograd does
        owed = owed + gradient
        acc = joined(feedback, buffer if in_place else gradient)
        assert acc.tolist() == owed.tolist()
        before, part = acc.copy(), picked(acc, chosen)
        consume(feedback, part)
        owed = (owed - part.to_dense()) / 2
        assert feedback.residual.tolist() == owed.tolist()
        assert feedback.given(before, part).tolist() == part.to_dense().tolist()


@pytest.mark.parametrize(("keep", "error"), [(0, ValueError), (1.1, ValueError), ("0.9", TypeError), (True, TypeError)])
def test_bad_keep(keep, error):
    with pytest.raises(error, match=r"keep must be .*in \(0, 1\], got"):
        LeakyFeedback(keep)


def test_rules_say_what_they_lose():
    """Nothing, unless it is meant."""
    assert {name: kind().leak for name, kind in FEEDBACKS.items() if kind().leak} == {
        "leaky": pytest.approx(0.05),
        "none": 1,
    }
