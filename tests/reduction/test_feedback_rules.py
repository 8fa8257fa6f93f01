"""Rules that do more than keep what was not sent: each follows its paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given

from sparse_mpi.feedback import FEEDBACKS, LeakyFeedback

from .feedback_steps import STEPS, consume, joined, picked, started


@given(STEPS)
def test_leaky_feedback_keeps_its_share_of_what_is_not_sent(steps):
    feedback, owed = started(LeakyFeedback(0.5)), np.zeros(5)
    assert feedback.traits.leak == 0.5
    for gradient, chosen in steps:
        owed = owed + gradient
        acc = joined(feedback, gradient)
        assert acc.tolist() == owed.tolist()
        before, part = acc.copy(), picked(acc, chosen)
        consume(feedback, part)
        owed = (owed - part.to_dense()) / 2
        assert feedback.residual.tolist() == owed.tolist()
        assert feedback.contribution(before, part).tolist() == part.to_dense().tolist()


def test_the_table_of_rules_says_what_they_declare():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row[3] for row in rows if row[0].strip("`") in FEEDBACKS and len(row) == 5}
    rules = {name: kind().traits for name, kind in FEEDBACKS.items()}
    assert table == {name: f"{100 * rule.leak:.0f} %" if rule.leak else "0" for name, rule in rules.items()}
