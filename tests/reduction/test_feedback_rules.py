"""Rules that do more than keep what was not sent: each follows its paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.feedback import EF21, FEEDBACKS, LeakyFeedback, StepAhead
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.sparse import Layout

from .feedback_steps import STEPS, consume, joined, picked, sparse, started


@given(STEPS, st.booleans())
def test_leaky_feedback_keeps_its_share_of_what_is_not_sent(steps, in_place):
    feedback, owed, buffer = started(LeakyFeedback(0.5), in_place=in_place), np.zeros(5), np.zeros(5)
    assert feedback.traits.leak == 0.5
    for gradient, chosen in steps:
        buffer += gradient  # as autograd does
        owed = owed + gradient
        acc = joined(feedback, buffer if in_place else gradient)
        assert acc.tolist() == owed.tolist()
        before, part = acc.copy(), picked(acc, chosen)
        consume(feedback, part)
        owed = (owed - part.to_dense()) / 2
        assert feedback.residual.tolist() == owed.tolist()
        assert feedback.contribution(before, part).tolist() == part.to_dense().tolist()


@pytest.mark.parametrize(("keep", "error"), [(0, ValueError), (1.1, ValueError), ("0.9", TypeError), (True, TypeError)])
def test_bad_keep(keep, error):
    with pytest.raises(error, match=r"keep must be .*in \(0, 1\], got"):
        LeakyFeedback(keep)


def test_rules_say_what_they_lose():
    """Nothing, unless it is meant."""
    leaks = {name: kind().traits.leak for name, kind in FEEDBACKS.items() if kind().traits.leak}
    assert leaks == {"leaky": pytest.approx(0.05), "sa-pef": 0.5, "none": 1}


@given(STEPS, st.sampled_from([1.0, 0.5, 0.25]), st.sets(st.integers(0, 4)))
def test_ef21_follows_the_paper(steps, weight, others):
    """What another rank sent, 1 at ``others``, changes the result, and not what this rank has told."""
    rule, v, h, model = started(EF21(weight)), None, np.zeros(5), np.zeros(5)
    for gradient, chosen in steps:
        v = gradient if v is None else (1 - weight) * v + weight * gradient
        acc = joined(rule, gradient)
        assert acc.tolist() == (v - h).tolist()
        part = picked(acc, chosen)
        total = part.to_dense() + np.isin(np.arange(5), list(others))
        result = picked(total, chosen | others)
        h, model = h + part.to_dense(), model + total
        assert rule.consume(part, result).tolist() == model.tolist() and rule.residual.tolist() == (v - h).tolist()
        remembered = whole_state(rule)
        assert remembered["told"].tolist() == h.tolist() and remembered["estimate"].tolist() == model.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dense", [False, True])
def test_ef21_begins_anew_where_a_result_is_not_finite(bad, dense):
    """On the rank that gave it, and on another: h and H are 0 there on both, so that they still agree."""
    ranks = [started(EF21(0.5), 3) for _ in range(2)]
    for rule in ranks:
        joined(rule, np.array([1.0, 2.0, 3.0]))
        rule.consume(*[sparse([0], [1.0], 3), sparse([0], [2.0], 3)])
    accs = [joined(rule, np.array([g, 2.0, 3.0])) for rule, g in zip(ranks, (bad, 5.0), strict=True)]
    total = accs[0] + accs[1] if dense else sparse([0], [bad], 3)
    for rule, acc in zip(ranks, accs, strict=True):
        assert not np.isfinite(rule.consume(acc if dense else sparse([0], acc[:1], 3), total)[0])
    assert [rule.state()["velocity"][0] for rule in ranks] == [0.0, 3.0]
    assert all(rule.state()["told"][0] == rule.state(replicated=True)["estimate"][0] == 0 for rule in ranks)
    assert all(np.isfinite(array).all() for rule in ranks for array in [*rule.state().values(), rule.residual])


def test_ef21_whose_state_was_saved_before_its_first_gradient_takes_that_whole():
    fresh, loaded = started(EF21(0.5), 2), started(EF21(0.5), 2)
    loaded.load(whole_state(fresh))
    assert joined(fresh, np.ones(2)).tolist() == joined(loaded, np.ones(2)).tolist() == [1, 1]


@given(STEPS, st.booleans())
def test_a_preview_is_the_part_of_the_residual_that_leaves_it(steps, in_place):
    rule, owed, buffer = started(StepAhead(0.5), in_place=in_place), np.zeros(5), np.zeros(5)
    for gradient, chosen in steps:
        assert rule.preview().tolist() == (owed / 2).tolist()
        owed = owed / 2 + gradient
        buffer += gradient  # as autograd does
        acc = joined(rule, buffer if in_place else gradient)
        assert acc.tolist() == owed.tolist()
        part = picked(acc, chosen)
        consume(rule, part)
        owed = owed - part.to_dense()


BAD = [
    (EF21, 0, ValueError, r"weight must be in \(0, 1\], got 0"),
    (EF21, 1.5, ValueError, r"weight must be in \(0, 1\], got 1.5"),
    (EF21, "1", TypeError, r"weight must be a number in \(0, 1\], got '1'"),
    (StepAhead, 1, ValueError, r"fraction must be in \[0, 1\), got 1"),
    (StepAhead, -0.1, ValueError, r"fraction must be in \[0, 1\), got -0.1"),
    (StepAhead, None, TypeError, r"fraction must be a number in \[0, 1\), got None"),
]


@pytest.mark.parametrize(("kind", "value", "error", "message"), BAD)
def test_bad_hyperparameters(kind, value, error, message):
    with pytest.raises(error, match=message):
        kind(value)


@pytest.mark.parametrize("name", FEEDBACKS)
def test_rules_say_whether_they_work_in_place(name):
    rule = FEEDBACKS[name]()
    if rule.traits.works_in_place:
        rule.start(Layout.of(3), True, 2).bind_buffer(np.zeros(3))
    else:
        with pytest.raises(ValueError, match="in_place must be False with"):
            rule.start(Layout.of(3), True, 2)


def test_the_table_of_rules_says_what_they_declare():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row[3:5] for row in rows if row[0].strip("`") in FEEDBACKS and len(row) == 6}
    rules = {name: kind().traits for name, kind in FEEDBACKS.items()}
    assert table == {
        name: [f"{100 * rule.leak:.0f} %" if rule.leak else "0", "yes" if rule.works_in_place else "no"]
        for name, rule in rules.items()
    }
