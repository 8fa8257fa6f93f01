"""Half precision in the CUDA kernels: read as it is, and widened exactly."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.arrays import widened
from sparse_mpi.kernels import array

from .on_cuda import N, put, same, thresholds

pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@pytest.mark.parametrize("half", [np.float16, np.uint16])
@pytest.mark.parametrize("n", [0, 5, 4097, 8193, N])
def test_half_precision_is_read_as_it_is(cuda, n, half, monkeypatch):
    """Every pattern of bits, from an even address and from another one; kernels are compiled for what they get."""
    rng, plain, reals = np.random.default_rng(n), cuda.kernel, set()
    whole = rng.integers(0, 1 << 16, n + 1).astype(np.uint16).view(half)
    monkeypatch.setattr(cuda, "kernel", lambda *args, **macros: reals.add(macros["REAL"]) or plain(*args, **macros))
    for x, on_device in ((whole[:n], put(cuda, whole)[:n]), (whole[1:], put(cuda, whole)[1:])):
        wide = widened(x)
        for threshold in thresholds(wide, 0.5, 0.99) if n else [0]:
            for most in (max(n, 1), max(n // 3, 1)):
                assert same(cuda.select(on_device, threshold, most), array.select(wide, threshold, most))
        numbers = np.where(np.isfinite(wide), wide, 0).astype(np.float32)
        assert cuda.histogram(on_device, 31, 0, 12).get().tolist() == array.histogram(wide, 31, 0, 12).tolist()
        if half is np.uint16:  # whose numbers are exact in half precision
            narrow = array.to_bfloat16(numbers)
            assert cuda.moments(put(cuda, narrow), 1) == pytest.approx(array.moments(widened(narrow), 1))
    assert reals == {np.dtype(half).name}


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_precision_number_is_widened_exactly(cuda, name):
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    gradient = every.view(np.float16) if name == "float16" else every
    residual = put(cuda, np.full(len(every), -0.0, np.float32))
    cuda.accumulate_select(residual, put(cuda, gradient), 0, 1)
    expected, found = widened(gradient), residual.get()
    finite = ~np.isnan(expected)
    assert found[finite].tobytes() == expected[finite].tobytes() and np.isnan(found[~finite]).all()
