"""Half precision in the kernels: read as it is, and widened exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import kernels
from sparse_mpi.arrays import magnitude_bits, widened
from sparse_mpi.kernels import array
from sparse_mpi.select.threshold import Threshold, ThresholdState

from ..fakes.fake_device import DEVICE
from .on_cuda import N, back, emulated, flushed, put, same, thresholds

as_compiled = pytest.mark.parametrize(
    "passes", ["compiled", "emulated", "flushing", pytest.param("device", marks=pytest.mark.gpu)], indirect=True
)
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@pytest.mark.thin(1)
@pytest.mark.parametrize("half", [np.float16, np.uint16])
@pytest.mark.parametrize("n", [0, 5, 4097, 8193, N])
def test_half_precision_is_read_as_it_is(passes, n, half, monkeypatch):
    """Every pattern of bits, from an even address and from another one; kernels are compiled for what they get."""
    rng, reals, plain = np.random.default_rng(n), set(), getattr(passes, "kernel", None)
    whole = rng.integers(0, 1 << 16, n + 1).astype(np.uint16).view(half)
    monkeypatch.setattr(
        passes, "kernel", lambda *args, **macros: reals.add(macros["REAL"]) or plain(*args, **macros), raising=False
    )
    for x, there in ((whole[:n], put(passes, whole)[:n]), (whole[1:], put(passes, whole)[1:])):
        wide = widened(x)
        for threshold in thresholds(wide, 0.5, 0.99) if n else [0]:
            for most in (max(n, 1), max(n // 3, 1)):
                assert same(passes.select(there, threshold, most), array.select(wide, threshold, most))
        for shift, prefix in ((31, 0), (15, int(np.median(magnitude_bits(wide))) >> 15 if n else 0)):
            found = kernels.host().histogram(x, shift, prefix, 12)
            assert found.tolist() == array.histogram(wide, shift, prefix, 12).tolist()
        numbers = flushed(np.where(np.isfinite(wide), wide, 0).astype(np.float32))
        if half is np.uint16:  # whose numbers are exact in half precision
            narrow = array.to_bfloat16(numbers)
            assert passes.moments(put(passes, narrow), 1) == pytest.approx(array.moments(widened(narrow), 1))
    assert reals == ({np.dtype(half)} if plain else set())


@as_compiled
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_precision_number_is_widened_exactly(passes, name):
    """As torch does, as values that are selected, and as sums with -0, which changes no number."""
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    gradient = bits.view(np.float16) if name == "float16" else bits
    expected = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, name)).float().numpy()
    finite, here = ~np.isnan(expected), put(passes, gradient)
    residuals = [put(passes, np.full(len(gradient), -0.0, np.float32)) for _ in range(2)]
    Threshold().select(residuals[0], 1, ThresholdState(), here)
    passes.accumulate(residuals[1], here)
    for found, wanted in (
        (passes.select(here, 0, len(gradient))[1], expected),
        (widened(gradient), expected),
        *((residual, flushed(expected)) for residual in residuals),
    ):
        values = back(found)
        assert values[finite].tobytes() == wanted[finite].tobytes() and np.isnan(values[~finite]).all()


@pytest.mark.parametrize("gradient_type", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 4097])
def test_sums_of_subnormal_numbers_are_those_of_the_host(cuda, n, dtype, gradient_type):
    """Which CuPy's own kernels take for zero."""
    tiny = flushed((np.random.default_rng(n).standard_normal((2, n)) * 1e-39).astype(np.float32))
    x = tiny[0].astype(dtype)
    if gradient_type == "bfloat16":
        gradient = array.to_bfloat16(tiny[1])
    else:
        gradient = (tiny[1] * np.float32(1e33 if gradient_type == "float16" else 1)).astype(gradient_type)
    a, b = put(cuda, x), x.copy()
    kernels.of(a).accumulate(a, put(cuda, gradient))
    kernels.of(b).accumulate(b, gradient)
    assert a.get().tobytes() == b.tobytes()


@emulated
@pytest.mark.parametrize("gradient_type", [np.float16, np.uint16, np.float32])
def test_accumulating_is_one_launch_and_nobody_waits(cuda, launches, gradient_type):
    residual, gradient = put(cuda, np.zeros(N, np.float32)), put(cuda, np.zeros(N, gradient_type))
    DEVICE.synchronised.clear()
    kernels.of(residual).accumulate(residual, gradient)
    assert len(launches) == 1 and not DEVICE.synchronised
