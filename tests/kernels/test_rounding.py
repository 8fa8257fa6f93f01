"""Passes over dense vectors: whole arrays against ml_dtypes and arithmetic, other sets against whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparse_mpi.arrays import widened
from sparse_mpi.kernels import array

from .on_cuda import back, inputs, put

ml_dtypes = pytest.importorskip("ml_dtypes")  # a machine with a GPU need not have it
FLOATS = [np.float32, np.float64]
MEANS = st.floats(0, 1e30) | st.just(np.inf)
quiet = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@given(st.lists(st.floats(width=32), max_size=20), st.sampled_from([np.float32, np.float64]))
@example([np.nan, -np.nan, np.inf, -np.inf, 3.4028234663852886e38, 1e-45, -0.0], np.float32)
@example([1.00390625, 1.01171875, 1.0, -1.00390625], np.float64)
def test_rounds_as_ml_dtypes_does(values, dtype):
    x = np.array(values, dtype)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    back, codes = np.full_like(x, 7), array.to_bfloat16(x)
    rounded = widened(codes)
    assert array.to_bfloat16(x, back).tobytes() == codes.tobytes() and back.tobytes() == rounded.astype(dtype).tobytes()
    np.testing.assert_array_equal(rounded, expected)
    assert (np.signbit(rounded) == np.signbit(expected))[~np.isnan(expected)].all()


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=20))
@example([(np.inf, np.inf), (1.0, np.nan), (np.nan, 1.0), (-0.0, 0.0), (1.0, -np.inf)])
def test_subtracts_all_values_and_clears_where_one_is_not_finite(pairs):
    x, values = np.array(pairs, np.float32).reshape(-1, 2).T.copy()
    with np.errstate(all="ignore"):
        expected = np.where(np.isfinite(values), x - values, 0)
        array.subtract_dense(x, values)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.lists(st.tuples(MEANS, st.floats()), max_size=40), st.floats(1e-9, 1))
@example(
    [(1.0, np.inf), (2.0, np.nan), (3.0, 1e25), (0.0, -0.0), (np.inf, 1.0), (np.inf, 1e25), (np.inf, -np.inf)], 0.5
)
@example([(0.0, 1e200), (np.inf, 1e200), (np.inf, np.nan)], 0.5)
def test_a_mean_follows_squares_of_what_is_finite_and_stays_infinite(dtype, pairs, weight):
    """As torch's Adam has it, but that a gradient which is not finite leaves a mean alone."""
    with np.errstate(all="ignore"):
        mean, x = np.array(pairs, dtype).reshape(-1, 2).T.copy()
        expected = np.where(np.isinf(mean), mean, mean + (x * x - mean) * dtype(weight))
        expected = np.where(np.isfinite(x), expected, mean)
        array.follow_squares(mean, x, weight)
    assert mean.tobytes() == expected.tobytes() and not np.isnan(mean).any()


def test_no_bit_pattern_of_nan_becomes_a_number():
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FFF8000], np.uint32)
    assert np.isnan(widened(array.to_bfloat16(bits.view(np.float32)))).all()


@quiet
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", inputs(np.float32, 8))
def test_rounding_and_what_it_stands_for(passes, name, dtype):
    x = inputs(dtype)[name] * dtype(3e38 if name == "student" else 1)
    there, back, expected = put(passes, x), put(passes, np.empty_like(x)), np.empty_like(x)
    codes = array.to_bfloat16(x, expected)
    assert passes.to_bfloat16(there, back).tobytes() == codes.tobytes()
    assert back.tobytes() == expected.tobytes()
    assert passes.to_bfloat16(there[1::3]).tobytes() == codes[1::3].tobytes()
    assert passes.to_bfloat16(there[:0]).size == 0


@quiet
@pytest.mark.parametrize(("change", "more"), [("subtract_dense", ()), ("follow_squares", (0.001,))])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "special", "student", "tiny"])
def test_changes_of_a_whole_vector(passes, name, dtype, change, more):
    values, host = inputs(dtype)[name], np.abs(inputs(dtype)["student"])
    if change == "follow_squares":
        host[::7], values[1::5] = np.inf, np.finfo(dtype).max ** 0.75
    x, there = put(passes, host), put(passes, values)
    getattr(passes, change)(x, there, *more)
    getattr(array, change)(host, values, *more)
    assert x.tobytes() == host.tobytes()
    getattr(passes, change)(x[:0], there[:0], *more)


@quiet
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "special", "student", "tiny"])
def test_standardizing(passes, name, dtype):
    x, squares = inputs(dtype)[name], np.square(inputs(dtype)["student"])
    squares[::7], squares[1::5] = np.inf, 0
    expected = array.standardized(x, squares)
    found, numbers = back(passes.standardized(put(passes, x), put(passes, squares))), ~np.isnan(x)
    assert found[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()  # of NaN each processor has its own
    assert (np.isfinite(expected) == np.isfinite(x)).all()
    assert passes.standardized(put(passes, x[:0]), put(passes, squares[:0])).size == 0


def test_each_is_one_launch(cuda, launches):
    x = put(cuda, inputs(np.float32)["normal"])
    back = cuda.cupy.empty_like(x)
    cuda.to_bfloat16(x, back)
    cuda.subtract_dense(x, back)
    cuda.follow_squares(x, back, 0.5)
    cuda.standardized(x, back)
    assert len(launches) == 4
