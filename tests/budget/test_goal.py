"""What a budget may say, and the errors of one that says nothing sensible."""

from __future__ import annotations

import pytest

from sparse_mpi.budget import Goal, make_goal


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("5MB/s", Goal(rate=5e6)),
        ("800kbit/s", Goal(rate=1e5)),
        ("1.5GiB/s", Goal(rate=1.5 * 2**30)),
        ("1 Mbit / s", Goal(rate=125e3)),
        (".5MiB/s", Goal(rate=2.0**19)),
        ("4096B/s", Goal(rate=4096.0)),
        ("200kB/step", Goal(bytes_per_step=2e5)),
        ("40GB/10000steps", Goal(total=40 * 10**9, steps=10_000)),
        ("8kbit/1step", Goal(total=1000, steps=1)),
    ],
)
def test_texts_are_read(text, goal):
    assert make_goal(text) == goal
    assert make_goal(text).limits_bytes


@pytest.mark.parametrize(
    "text", ["5", "", "MB/s", "5MB", "5 parsecs/s", "-5MB/s", "0MB/s", "5mb/s", "1GB/0steps", "5e3B/s"]
)
def test_texts_that_say_no_amount_are_refused(text):
    with pytest.raises(ValueError, match=r"budget must be .* '?5MB/s'?|budget must be above 0"):
        make_goal(text)


@pytest.mark.parametrize("budget", [5, 5e6, True, b"5MB/s"])
def test_a_budget_without_a_unit_is_refused(budget):
    with pytest.raises(TypeError, match="budget must be a text with a unit"):
        make_goal(budget)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_seconds_must_be_above_0_and_finite(seconds):
    with pytest.raises(ValueError, match=r"step_seconds must be in \(0, inf\)"):
        make_goal(step_seconds=seconds)


@pytest.mark.parametrize("seconds", ["0.2", True, [1]])
def test_seconds_must_be_a_number(seconds):
    with pytest.raises(TypeError, match="step_seconds must be a number"):
        make_goal(step_seconds=seconds)


def test_seconds_alone_count_no_bytes():
    assert make_goal(step_seconds=1) == Goal(seconds=1.0)
    assert not make_goal(step_seconds=1).limits_bytes
    assert make_goal() is None


@pytest.mark.parametrize("asked", [{"budget": "5MB/s"}, {"step_seconds": 0.2}])
@pytest.mark.parametrize("amount", [{"k": 5}, {"density": 0.1}])
def test_an_amount_beside_it_is_refused(asked, amount):
    (name, value), (which, _) = *amount.items(), *asked.items()
    with pytest.raises(ValueError, match=f"{name} must be left out with {which}.*{value}"):
        make_goal(**asked, **amount)


@pytest.mark.parametrize(
    ("goal", "fits"),
    [
        (make_goal("24B/s"), 3),
        (make_goal("24B/step"), 3),
        (make_goal("240B/10steps"), 3),
        (make_goal("24B/s", 0.5), 1),
        (make_goal(step_seconds=1e-9), 1000),
    ],
)
def test_a_budget_must_hold_an_entry_of_every_segment(goal, fits):
    goal.check_fits(fits)
    if goal.limits_bytes:
        with pytest.raises(ValueError, match="budget must let one entry of 8 bytes of each of"):
            goal.check_fits(fits + 1)
