"""NumPy and torch in and out without copies. Device arrays: `test_device_arrays`, and for real `test_gpu`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sparse_mpi import arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_enter_shares_memory(dtype):
    x = np.zeros((3, 4), dtype)
    assert np.shares_memory(arrays.enter(x), x) and arrays.enter(x).shape == (12,)
    t = torch.zeros(3, 4, dtype=getattr(torch, dtype), requires_grad=True)
    arrays.enter(t)[5] = 1
    assert t[1, 1] == 1


@pytest.mark.parametrize("x", [np.ones(3, np.float16), np.ones(3, ml_dtypes.bfloat16), torch.ones(3).bfloat16()])
def test_half_precision_is_widened(x):
    arrays.check(x, "x")
    wide = arrays.widened(arrays.enter(x))
    assert wide.dtype == arrays.wide_type(arrays.enter(x)) == np.float32 and (wide == 1).all()


def test_leave_goes_back_without_a_copy():
    a = np.zeros(3, np.float32)
    out = arrays.leave(a, torch.zeros(1))
    out[1] = 5
    assert a[1] == 5 and arrays.leave(a, np.zeros(1)) is a


def test_host_functions():
    x = np.ones(2)
    assert arrays.namespace(x) is np and arrays.to_host(x) is x and arrays.like(x, x) is x
    assert not arrays.is_device(x)
    arrays.synchronize(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], "gradient must be a NumPy or CuPy array or a torch tensor, got list"),
        (torch.zeros(2, dtype=torch.int64), "dtype float32, float64, float16, bfloat16, got int64"),
        (np.zeros(2, complex), "got complex128"),
        (torch.zeros(2, device="meta"), "must be on the CPU or a CUDA device, got meta"),
    ],
)
def test_check_names_what_came(x, message):
    with pytest.raises(TypeError, match=message):
        arrays.check(x, "gradient")


@given(st.lists(st.floats(width=32), max_size=20), st.sampled_from([np.float32, np.float64]))
@example([np.nan, -np.nan, np.inf, -np.inf, 3.4028234663852886e38, 1e-45, -0.0], np.float32)
def test_rounding_to_bfloat16_is_that_of_ml_dtypes(values, dtype):
    x = np.array(values, dtype)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = arrays.widened(arrays.to_bfloat16(x))
    np.testing.assert_array_equal(rounded, expected)
    assert (np.signbit(rounded) == np.signbit(expected))[~np.isnan(expected)].all()


def test_no_bit_pattern_of_nan_becomes_a_number():
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FFF8000], np.uint32)
    assert np.isnan(arrays.widened(arrays.to_bfloat16(bits.view(np.float32)))).all()
