"""Fitting costs: exact where the world is a straight line, never negative where it is not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.tools.plan.measure import fit

ELEMENTS, ENTRIES = (4096, 1_000_000, 1_000_000, 8_000_000), (40, 10_000, 2_500, 80_000)
coefficients = st.sampled_from([0.0, 1e-4, 1e-3]), st.sampled_from([0.0, 1e-10, 1e-8]), st.sampled_from([0.0, 1e-8])


@given(*coefficients)
def test_a_straight_line_is_found(fixed, per_element, per_entry):
    def line(n, k):
        return fixed + per_element * n + per_entry * k

    cost = fit(ELEMENTS, ENTRIES, [line(n, k) for n, k in zip(ELEMENTS, ENTRIES, strict=True)])
    for n, k in ((4096, 40), (500_000, 5_000), (8_000_000, 80_000), (14_700_000, 147_000)):
        assert cost.seconds(n, k) == pytest.approx(line(n, k), rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_whatever_was_measured_no_cost_is_negative(seconds):
    cost = fit(ELEMENTS, ENTRIES, seconds)
    assert all(math.isfinite(c) and c >= 0 for c in (cost.fixed, cost.per_element, cost.per_entry))


def test_errors_count_relative_to_what_was_measured():
    """A microsecond matters for short vectors as a second does for long ones."""
    cost = fit((1, 1_000, 1_000_000), (0, 0, 0), (1e-5, 2e-5, 1.1e-2))
    assert cost.seconds(1, 0) == pytest.approx(1e-5, rel=0.1)
    assert cost.seconds(1_000_000, 0) == pytest.approx(1.1e-2, rel=0.1)


def test_of_dense_costs_nothing_is_blamed_on_entries():
    assert fit(ELEMENTS, (0, 0, 0, 0), (1e-3, 0.1, 0.11, 0.8)).per_entry == 0
