"""Learning rate and density over a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparse_train.options.optimization import Ramp, density, learning_rate


def settings(**changes):
    values = {"lr": 0.8, "lr_times_ranks": False, "warmup_epochs": 10, "epochs": 40}
    return SimpleNamespace(**(values | {"schedule": "steps", "milestones": (), "decay": 1.0} | changes))


def test_learning_rate_climbs_from_one_ranks_share_and_falls_at_milestones():
    def rate(epoch):
        return learning_rate(epoch, settings(milestones=(20, 30)), 4)

    assert rate(0) == pytest.approx(0.2)
    assert rate(5) == pytest.approx(0.5)
    assert rate(10) == rate(19.99) == pytest.approx(0.8)
    assert rate(20) == rate(29.99) == pytest.approx(0.08)
    assert rate(1000) == pytest.approx(0.008)
    assert learning_rate(0, settings(warmup_epochs=0), 4) == learning_rate(3, settings(), 1) == pytest.approx(0.8)
    assert learning_rate(10, settings(lr_times_ranks=True), 4) == pytest.approx(3.2)


def test_learning_rate_falls_in_a_line_to_zero_at_the_end():
    args = settings(schedule="linear", epochs=50, max_steps=3)
    rates = [learning_rate(epoch, args, 4) for epoch in (0, 5, 10, 20, 30, 49.9, 50)]
    assert rates == pytest.approx([0.2, 0.5, 0.8, 0.6, 0.4, 0.002, 0])


def test_learning_rate_decays_by_a_factor_each_epoch():
    args = settings(schedule="exponential", decay=0.5, warmup_epochs=1.5)
    rates = [learning_rate(epoch, args, 4) for epoch in (0, 1.5, 2.4, 2.5, 3.5, 11.5)]
    assert rates == pytest.approx([0.2, 0.8, 0.8, 0.4, 0.2, 0.8 * 0.5**10])


def test_density_falls_exponentially_or_as_listed():
    published = [density(epoch, 0.001, 4) for epoch in (0, 1.5, 2, 3.99, 4, 100)]
    assert published == pytest.approx([0.251, 0.0631, 0.0158, 0.00398, 0.001, 0.001], rel=5e-3)
    assert [density(epoch, 0.01, (0.5, 0.25)) for epoch in (0, 0.9, 1, 2)] == [0.5, 0.5, 0.25, 0.01]
    assert density(0, 0.01) == 0.01
    ramp = [density(epoch, 0.01, Ramp(0.16, 0.5)) for epoch in (0, 0.25, 0.5, 3)]
    assert ramp == pytest.approx([0.16, 0.04, 0.01, 0.01])
