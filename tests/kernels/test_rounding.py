"""Rounding to bfloat16: every kernel set against ml_dtypes, and what it must never do to a NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparse_mpi.arrays import widened
from sparse_mpi.kernels import array, threads

ml_dtypes = pytest.importorskip("ml_dtypes")  # a machine with a GPU need not have it
SETS = [array]
try:
    from sparse_mpi.kernels import cpu

    SETS.append(cpu)
except ImportError:  # no Numba
    pass

every_set = pytest.mark.parametrize("kernels", SETS, ids=lambda kernels: kernels.__name__.rsplit(".", 1)[-1])


@every_set
@given(st.lists(st.floats(width=32), max_size=20), st.sampled_from([np.float32, np.float64]))
@example([np.nan, -np.nan, np.inf, -np.inf, 3.4028234663852886e38, 1e-45, -0.0], np.float32)
@example([1.00390625, 1.01171875, 1.0, -1.00390625], np.float64)
def test_rounds_as_ml_dtypes_does(kernels, values, dtype):
    x = np.array(values, dtype)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = widened(kernels.to_bfloat16(x))
    np.testing.assert_array_equal(rounded, expected)
    assert (np.signbit(rounded) == np.signbit(expected))[~np.isnan(expected)].all()


@every_set
@given(st.lists(st.floats(width=32), max_size=20), st.sampled_from([np.float32, np.float64]))
@example([np.nan, -np.nan, np.inf, -np.inf, 3.4028234663852886e38, 1e-45, -0.0], np.float32)
def test_writes_back_what_the_codes_stand_for(kernels, values, dtype):
    x = np.array(values, dtype)
    back = np.full_like(x, 7)
    codes = kernels.to_bfloat16(x, back)
    np.testing.assert_array_equal(codes, kernels.to_bfloat16(x))
    assert back.tobytes() == widened(codes).astype(dtype).tobytes()


@every_set
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=20))
@example([(np.inf, np.inf), (1.0, np.nan), (np.nan, 1.0), (-0.0, 0.0), (1.0, -np.inf)])
def test_subtracts_all_values_and_clears_where_one_is_not_finite(kernels, pairs):
    x, values = np.array(pairs, np.float32).reshape(-1, 2).T.copy()
    with np.errstate(all="ignore"):
        expected = np.where(np.isfinite(values), x - values, 0)
        kernels.subtract_dense(x, values)
    np.testing.assert_array_equal(x, expected)


@every_set
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.lists(st.tuples(st.floats(0, 1e30), st.floats(-1e30, 1e30)), max_size=40), st.floats(0, 1))
@example([(1.0, np.inf), (2.0, np.nan), (3.0, 1e25), (0.0, -0.0)], 0.5)
def test_a_mean_follows_squares_unless_they_are_not_finite(kernels, dtype, pairs, weight):
    mean, x = np.array(pairs, dtype).reshape(-1, 2).T.copy()
    with np.errstate(all="ignore"):
        change = (x * x - mean) * dtype(weight)
        expected = np.where(np.isfinite(change), mean + change, mean)
        kernels.follow_squares(mean, x, weight)
    assert mean.tobytes() == expected.tobytes()


@every_set
def test_no_bit_pattern_of_nan_becomes_a_number(kernels):
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FFF8000], np.uint32)
    assert np.isnan(widened(kernels.to_bfloat16(bits.view(np.float32)))).all()


@every_set
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_and_strided_vectors_on_several_threads(kernels, dtype, monkeypatch):
    monkeypatch.setattr(threads, "limit", lambda: 3)
    monkeypatch.setattr(threads, "MIN_ENTRIES_PER_THREAD", 64)
    x = np.random.default_rng(0).standard_normal(10_007).astype(dtype)
    for vector in (x, x[::3]):
        expected = vector.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        back = np.empty(len(vector), dtype)
        np.testing.assert_array_equal(kernels.to_bfloat16(vector, back), expected)
        np.testing.assert_array_equal(back, widened(expected))
        rest = np.array(vector)
        kernels.subtract_dense(rest, back)
        np.testing.assert_array_equal(rest, vector - back)
