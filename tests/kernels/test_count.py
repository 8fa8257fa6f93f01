"""The kernel that counts what reaches thresholds: the numbers of the definition from every set, one launch in CUDA."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.arrays import bits_type, magnitude_bits, widened
from sparse_mpi.kernels import array

from ..fakes.fake_device import DEVICE
from .on_cuda import emulated, inputs, put

FLOATS = [np.float32, np.float64]
HALVES = [np.float16, np.uint16]
SPECIAL = [0.0, -0.0, 1.0, -1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def limits_of(x, number):
    """So many ascending thresholds: 0, the highest magnitude, and magnitudes that occur, or lie just above one."""
    bits, end = magnitude_bits(widened(x)), np.iinfo(bits_type(widened(x))).max
    drawn = np.random.default_rng(number).choice(bits, number) if len(bits) else np.zeros(number, np.int64)
    drawn = np.minimum(drawn.astype(np.int64) + np.arange(number) % 2, end - 1)
    return np.sort(np.concatenate([[0, end][:number], drawn[2:]]).astype(np.int64))


def check(passes, there, x, limits):
    found, bits = passes.count(there, limits), magnitude_bits(widened(x))
    assert type(found) is np.ndarray and found.dtype == np.int64
    assert found.tolist() == array.count(x, limits).tolist() == [int((bits >= limit).sum()) for limit in limits]


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES])
@pytest.mark.parametrize("n", [0, 1, 5, 4095, 4097, 9000])
def test_count_of_any_length_from_any_address(passes, n, dtype):
    whole = inputs(np.float32, n + 1)["special"]
    whole = array.to_bfloat16(whole) if dtype is np.uint16 else whole.astype(dtype)
    there, limits = put(passes, whole), limits_of(whole[:n], 5)
    for part in (slice(n), slice(1, None), slice(None, None, 2)):
        check(passes, there[part], whole[part], limits)


@pytest.mark.parametrize("half", HALVES)
def test_every_half_precision_number_is_counted_as_it_is(passes, half):
    every = np.random.default_rng(0).permutation(1 << 16).astype(np.uint16).view(half)
    check(passes, put(passes, every), every, limits_of(every, 20))


@pytest.mark.parametrize("number", [0, 63, 64, 65, 128, 300])
def test_any_number_of_thresholds(passes, number):
    x = inputs(np.float32, 5000)["special"]
    check(passes, put(passes, x), x, limits_of(x, number))


@given(st.data())
def test_count_of_anything(passes, data):
    dtype = data.draw(st.sampled_from(FLOATS))
    x = np.array(data.draw(st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), max_size=70)), dtype)
    occurring = [int(bits) for bits in magnitude_bits(x)]
    limit = st.integers(0, int(np.iinfo(bits_type(x)).max))
    limits = data.draw(st.lists(st.sampled_from(occurring) | limit if occurring else limit, max_size=70))
    check(passes, put(passes, x), x, np.array(sorted(limits), np.int64))


@emulated
@pytest.mark.parametrize("number", [1, 32, 200])
def test_a_single_launch_and_a_single_wait(cuda, launches, number):
    """Thresholds are read from memory of the host, and counts told to it; nothing is copied."""
    x = inputs(np.float32)["normal"]
    on_device, limits = put(cuda, x), limits_of(x, number)
    copied, waited = len(DEVICE.copies), len(DEVICE.synchronised)
    cuda.count(on_device, limits)
    assert len(launches) == 1
    assert len(DEVICE.copies) == copied
    assert len(DEVICE.synchronised) == waited + 1


@emulated
def test_nothing_to_count_needs_no_launch(cuda, launches):
    x = put(cuda, np.ones(9, np.float32))
    assert cuda.count(x, np.zeros(0, np.int64)).tolist() == []
    assert cuda.count(x[:0], np.array([0, 5])).tolist() == [0, 0]
    assert launches == []
