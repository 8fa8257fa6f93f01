"""The controller against simulated links: it meets its goals, follows the link, and does not swing."""

from __future__ import annotations

import json
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.budget import Controller, Goal, Observation
from sparse_mpi.budget.controller import CHANGE, FIRST, START, WINDOW
from sparse_mpi.budget.goal import PAIR_BYTES

from .links import DENSE, GBIT, MBIT, SIZE, Link, alternating, controller

TARGET = 0.2
BAND = 0.15  # of the target, in which the median step must be
noises = st.sampled_from([0.0, 0.1, 0.3])


def total(steps) -> int:
    return sum(step.sent for step in steps)


def seconds(steps) -> float:
    return sum(step.seconds for step in steps)


@given(mbit=st.floats(20, 2000), hidden=st.sampled_from([0.0, 0.8]), noise=noises)
def test_steps_take_as_long_as_wanted_on_any_link(mbit, hidden, noise):
    link = Link(lambda now: mbit * MBIT, hidden=hidden, noise=noise)
    steps = link.run(controller(seconds=TARGET), 30)[30:]
    dense = steps[-1].decision.dense
    assert median(step.seconds for step in steps) == pytest.approx(TARGET, rel=BAND) or dense
    if not noise and not dense:  # and stay there without swinging
        assert all(step.seconds == pytest.approx(TARGET, rel=0.03) for step in steps)


@given(mbit=st.floats(20, 2000), part=st.floats(0.05, 0.6), noise=noises, seed=st.integers(0, 99))
def test_bytes_are_those_of_the_budget_on_any_link_that_carries_them(mbit, part, noise, seed):
    rate = part * mbit * MBIT
    steps = Link(lambda now: mbit * MBIT, noise=noise).run(controller(rate=rate), 120, seed=seed)
    if not any(step.decision.dense for step in steps):
        assert total(steps) == pytest.approx(rate * seconds(steps), rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("hidden", [0.0, 0.8])
def test_an_alternating_link_is_followed(noise, hidden):
    link = Link(alternating, noise=noise, hidden=hidden)
    steps = link.run(controller(seconds=TARGET), 300)
    assert median(step.seconds for step in steps) == pytest.approx(TARGET, rel=BAND)
    for rate in (5e6, 3e6):
        paid = link.run(controller(rate=rate), 600)
        assert total(paid) == pytest.approx(rate * seconds(paid), rel=0.05)


def test_a_slower_link_is_followed_in_two_steps_and_a_faster_one_in_six():
    steps = Link(alternating).run(controller(seconds=TARGET), 120)
    late = [step for step in steps if step.began > 25]
    off = [step for step in late if abs(step.seconds - TARGET) > BAND * TARGET]
    slower, faster = ([s for s in off if low < s.began < low + 10] for low in (29, 59))
    assert 1 <= len(slower) <= 2 and 1 <= len(faster) <= 6


@given(mbit=st.floats(5, 2000), hidden=st.sampled_from([0.0, 0.8]), latency=st.sampled_from([1e-4, 2e-3, 2e-2]))
def test_the_first_decisions_go_as_far_up_as_is_wanted_and_no_further(mbit, hidden, latency):
    link = Link(lambda now: mbit * MBIT, hidden=hidden, latency=latency)
    for goal in ({"seconds": TARGET}, {"bytes_per_step": 1e6}, {"rate": 5e6}):
        steps = link.run(controller(**goal), 60)
        settled = median(step.decision.k for step in steps[-20:])
        assert steps[FIRST + 3].decision.k >= 0.4 * settled
        if "seconds" in goal:  # as long as wanted, if not even the first steps were longer
            assert all(step.seconds <= max(1.1 * TARGET, 1.01 * steps[0].seconds) for step in steps[: FIRST + 5])


@pytest.mark.parametrize(
    "goal", [{"bytes_per_step": 8e3}, {"total": 800_000, "steps": 100}, {"rate": 4e4, "seconds": TARGET}]
)
def test_the_first_steps_send_what_the_budget_has_for_them(goal):
    assert controller(**goal).k == 1000
    assert controller(floor=1001, **goal).k == 1001
    assert controller(rate=4e4).k == controller(seconds=TARGET).k == START * SIZE
    assert controller(bytes_per_step=1e12).k == min(SIZE, DENSE // PAIR_BYTES)


def test_k_changes_by_no_more_than_a_factor_unless_the_link_collapses():
    steps = Link(alternating, noise=0.2).run(controller(seconds=TARGET), 200)[FIRST + 5 :]
    ks = [step.decision.k for step in steps]
    for step, before, after in zip(steps[1:], ks, ks[1:], strict=False):
        assert after <= CHANGE * before + 1
        assert after >= before / CHANGE - 1 or step.seconds > 1.5 * TARGET


def test_a_link_that_is_lost_for_seconds_costs_one_long_step_or_two():
    link = Link(lambda now: 1e3 if 60 < now < 65 else 100 * MBIT)
    steps = link.run(controller(seconds=TARGET), 120)
    assert sum(step.seconds > 2 * TARGET for step in steps) <= 2
    assert median(step.seconds for step in steps) == pytest.approx(TARGET, rel=BAND)
    after = [step for step in steps if step.began > 75]
    assert all(step.seconds == pytest.approx(TARGET, rel=BAND) for step in after)


@given(rate=st.floats(1e6, 3e7), noise=noises, steps=st.integers(200, 2000))
def test_a_total_is_met_to_the_last_step(rate, noise, steps):
    budget = round(rate * 0.1 * steps)
    made = Link(lambda now: GBIT, noise=noise).run(controller(total=budget, steps=steps), 0.5 * steps)[:steps]
    assert total(made) == pytest.approx(budget, rel=0.05)


def test_bytes_a_step_are_those_of_the_budget():
    steps = Link(lambda now: GBIT).run(controller(bytes_per_step=2e5), 100)
    assert total(steps) == pytest.approx(2e5 * len(steps), rel=0.05)


def test_both_goals_hold_and_the_smaller_amount_wins():
    rate = 5e6
    steps = Link(alternating).run(controller(rate=rate, seconds=TARGET), 600)
    assert total(steps) == pytest.approx(rate * seconds(steps), rel=0.05)
    assert median(step.seconds for step in steps) <= TARGET * (1 + BAND)


def test_more_is_sent_while_gradients_change_and_the_total_stays():
    """The norm falls to a quarter within 4 seconds in the middle of training."""
    rate = 5e6

    def norm(now: float) -> float:
        return 4.0 if now < 100 else max(1.0, 4.0 - (now - 100) / 1.3)

    steps = Link(lambda now: GBIT).run(controller(rate=rate), 300, norm)
    sent = {now: median(s.sent for s in steps if now < s.began < now + 3) for now in (1, 80, 102, 112, 250)}
    assert sent[1] > 1.1 * sent[80] and sent[102] > 1.1 * sent[80]
    assert sent[112] < sent[80] < 1.02 * sent[250]  # repaid, then as before
    assert total(steps) == pytest.approx(rate * seconds(steps), rel=0.05)


@pytest.mark.parametrize("rate", [2e6, 5e6])
def test_gradients_that_never_cease_to_change_do_not_break_the_budget(rate):
    """The debt is never worth more than 10 steps, however long training stays critical."""
    steps = Link(lambda now: 50 * MBIT, compute=0.4).run(controller(rate=rate), 300, lambda now: 1.1**now)
    assert min(step.decision.urgency for step in steps) == 1
    assert total(steps) == pytest.approx(rate * seconds(steps), rel=0.05)


def test_steps_are_dense_where_that_costs_no_more_and_sparse_again_when_it_does():
    link = Link(lambda now: 100 * GBIT if now < 30 else 50 * MBIT)
    steps = link.run(controller(seconds=TARGET), 60)
    early, late = steps[int(20 / 0.12)], steps[-1]
    assert early.decision.dense and early.decision.k == SIZE and early.decision.why == "dense"
    assert not late.decision.dense and late.seconds == pytest.approx(TARGET, rel=BAND)


def test_no_fewer_entries_than_segments_are_sent_whatever_the_goal():
    steps = Link(lambda now: 10 * MBIT, compute=0.3).run(controller(floor=7, seconds=TARGET), 30)
    assert steps[-1].decision.k == 7 and steps[-1].decision.why == "floor"


def test_from_the_floor_a_few_entries_grow_again():
    made = controller(floor=1, seconds=TARGET)
    made.load(made.state() | {"amount": 1.0})
    steps = Link(lambda now: GBIT).run(made, 5)
    assert steps[0].decision.k == 1
    assert steps[-1].seconds == pytest.approx(TARGET, rel=BAND)


def test_training_that_pauses_neither_slows_nor_earns():
    made = controller(rate=1e6, seconds=0.5)
    for step in range(1, 40):
        rest = 60 * 10**9 if step == 20 else 10**8  # an evaluation
        decision = made.observe(Observation(rest, 10**7, 10**7, 10**5 * step))
        assert decision.seconds == pytest.approx(0.11)
    assert made.account.elapsed < 5 * 10**9


def test_the_first_steps_change_nothing():
    made = controller(seconds=TARGET)
    start = made.k
    for step in range(FIRST):
        assert made.observe(Observation(9 * 10**9, 9 * 10**9, 9 * 10**9, step)).why == "start"
    assert made.k == start


def test_one_rank_alone_which_sends_nothing_is_dense():
    made = Controller(Goal(rate=1e3), 1, 1000, 0.0)
    for _ in range(30):
        decision = made.observe(Observation(10**8, 0, 10**5, 0))
    assert decision.dense and decision.k == 1000


@given(cut=st.integers(1, 3 * WINDOW), noise=noises, goal=st.sampled_from([{"seconds": TARGET}, {"rate": 5e6}]))
def test_a_restored_controller_decides_to_the_bit_as_the_one_that_was_saved(cut, noise, goal):
    link = Link(alternating, noise=noise)
    straight, saved, again = controller(**goal), controller(**goal), controller(**goal)
    link.run(straight, 0.5 * cut)
    link.run(saved, 0.5 * cut)
    again.load(json.loads(json.dumps(saved.state())))
    assert again.state() == straight.state()
    sent = straight.account.sent
    for step in range(30):
        sent += 12 * straight.k
        seen = Observation(10**8 + step, 10**7 * step, 10**8, sent, 1.0 + step)
        assert again.observe(seen) == straight.observe(seen)
    assert again.state() == straight.state()


def test_with_another_goal_the_account_begins_anew():
    link = Link(lambda now: GBIT)
    first, second = controller(rate=5e6), controller(rate=1e6)
    sent = total(link.run(first, 60))
    second.load(json.loads(json.dumps(first.state())))
    assert second.account.credit == 0 and second.account.sent == sent and second.k == first.k
    made = [second.observe(Observation(10**8, 10**6, 10**6, sent := sent + 12 * second.k)) for _ in range(300)]
    assert sum(decision.sent for decision in made) == pytest.approx(1e6 * 300 * 0.101, rel=0.05)


def test_the_dense_bytes_of_the_simulation_are_those_of_four_ranks():
    assert DENSE == 2 * 4 * SIZE * 3 / 4
