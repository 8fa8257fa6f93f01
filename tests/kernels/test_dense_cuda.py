"""The CUDA passes over dense vectors against those of whole-array functions, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.kernels import array

from .on_cuda import inputs, put

FLOATS = [np.float32, np.float64]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", inputs(np.float32, 8))
def test_rounding_and_what_it_stands_for(cuda, name, dtype):
    x = inputs(dtype)[name] * dtype(3e38 if name == "student" else 1)
    on_device, back, expected = put(cuda, x), put(cuda, np.empty_like(x)), np.empty_like(x)
    codes = array.to_bfloat16(x, expected)
    assert cuda.to_bfloat16(on_device, back).get().tobytes() == codes.tobytes()
    assert back.get().tobytes() == expected.tobytes()
    assert cuda.to_bfloat16(on_device[1::3]).get().tobytes() == codes[1::3].tobytes()
    assert cuda.to_bfloat16(on_device[:0]).size == 0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "special", "tiny"])
def test_subtracting_all_values(cuda, name, dtype):
    values = inputs(dtype)[name]
    x, host = put(cuda, inputs(dtype)["student"]), inputs(dtype)["student"]
    cuda.subtract_dense(x, put(cuda, values))
    array.subtract_dense(host, values)
    assert x.get().tobytes() == host.tobytes()
    cuda.subtract_dense(x[:0], put(cuda, values[:0]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "special", "student", "tiny"])
def test_following_squares(cuda, name, dtype):
    x = inputs(dtype)[name]
    host = np.abs(inputs(dtype)["student"])
    mean = put(cuda, host)
    cuda.follow_squares(mean, put(cuda, x), 0.001)
    array.follow_squares(host, x, 0.001)
    assert mean.get().tobytes() == host.tobytes()


def test_each_is_one_launch(cuda, launches):
    x = put(cuda, inputs(np.float32)["normal"])
    back = cuda.cupy.empty_like(x)
    cuda.to_bfloat16(x, back)
    cuda.subtract_dense(x, back)
    cuda.follow_squares(x, back, 0.5)
    assert len(launches) == 3
