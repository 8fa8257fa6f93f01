"""Kernels that truncate pairs and look indices up: the bytes of the whole-array ones from every set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.arrays import magnitude_bits, widened
from sparse_mpi.kernels import array, cpu
from sparse_mpi.select.threshold import Threshold, ThresholdState

from ..fakes import fake_cuda
from ..fakes.fake_device import DEVICE
from .on_cuda import N, emulated, inputs, put, same, thresholds

FLOATS, INDICES = [np.float32, np.float64], [np.int32, np.int64]
SPECIAL = [0.0, -0.0, 1.0, -1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def ascending(m, dtype):
    """Indices with gaps, beyond 32 bits where the type allows."""
    start = 2**40 if dtype is np.int64 else 0
    return (start + np.cumsum(np.random.default_rng(m).integers(1, 9, m))).astype(dtype)


def check(passes, indices, values, k, part=slice(None)):
    """Truncate ``part`` of the pairs, which are left alone unless they may be overwritten."""
    expected = array.truncate(indices[part], values[part], k)
    here, there = put(passes, indices), put(passes, values)
    found = passes.truncate(here[part], there[part], k)
    assert found[0].size == found[1].size == min(k, len(values[part])) and same(found, expected)
    assert same((here, there), (indices, values))
    *found, least = passes.truncate_least(here[part], there[part], k)
    assert same(found, expected) and same((here, there), (indices, values))
    assert int(least) == (magnitude_bits(expected[1]).min() if len(expected[1]) == k else 0)
    assert same(passes.truncate(here[part], there[part], k, reuse=True), expected)


@pytest.fixture
def small(passes, monkeypatch):
    """The kernels with blocks that are soon emulated, and shares of 600 pairs, which these compact in two stretches."""
    for name, number in (("SELECTING", 128), ("PAIRS", 600)):
        monkeypatch.setattr(passes, name, number, raising=False)
    return passes


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m", [0, 1, 2, 33, 511, 600, 601])
def test_truncate_of_any_length_from_any_address(small, m, dtype):
    indices, values = ascending(m + 1, np.int32), inputs(dtype, m + 1)["special"]
    for part in (slice(m), slice(1, None), slice(None, None, 2)):
        for k in sorted({1, max(1, m // 3), max(1, m - 1), m + 1}):
            check(small, indices, values, k, part)


@pytest.mark.thin(1)
@pytest.mark.parametrize("value", [0.0, -0.25, np.inf, np.nan])
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_ties_the_first_are_kept(small, dtype, value):
    indices, values = ascending(1900, np.int32), np.full(1900, value, dtype)
    values[::7] *= -1
    for k in (1, 999, 1899):
        check(small, indices, values, k)
        assert small.truncate(put(small, indices), put(small, values), k)[0].tolist() == indices[:k].tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncate_near_the_end_of_the_bit_range(small, dtype):
    """NaN with every bit set, and neighbours that only their last bits tell apart."""
    integer = np.int64 if dtype is np.float64 else np.int32
    highest = np.iinfo(integer).max
    for bits in (highest - np.arange(300) * (highest // 331), highest // 2 + np.arange(300)):
        values = np.random.default_rng(0).permutation(bits).astype(integer).view(dtype)
        for k in (1, 2, 17, 299):
            check(small, ascending(300, np.int32), values, k)


@pytest.mark.thin(1)
@pytest.mark.parametrize("resident", [1, 2, 8])
@pytest.mark.parametrize("seed", range(3))
def test_truncate_in_any_order_of_blocks_and_threads(cuda, monkeypatch, resident, seed):
    """It ends however few of its 13 blocks run at a time."""
    monkeypatch.setattr(fake_cuda, "RESIDENT", resident)
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    monkeypatch.setattr(cuda, "SELECTING", 128)
    monkeypatch.setattr(cuda, "PAIRS", 80)
    rng = np.random.default_rng(seed)
    indices, values = ascending(1000, np.int32), (rng.integers(-9, 10, 1000) / 4).astype(np.float32)
    for k in (1, 400, 999):
        check(cuda, indices, values, k)


@emulated
@pytest.mark.parametrize(("most", "blocks"), [(3, 3), (128, 6)])
def test_shares_are_few_and_worth_a_block(cuda, monkeypatch, launches, most, blocks):
    for name, number in (("SELECTING", 128), ("PAIRS", 600), ("SHARES", most)):
        monkeypatch.setattr(cuda, name, number)
    check(cuda, ascending(3001, np.int32), inputs(np.float32, 3001)["student"], 500)
    assert set(launches) == {(blocks,)}


@given(st.data())
def test_truncate_of_anything(small, data):
    values = data.draw(st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=1, max_size=60))
    values = np.array(values, data.draw(st.sampled_from(FLOATS)))
    indices = np.sort(data.draw(st.permutations(range(99))))[: len(values)].astype(data.draw(st.sampled_from(INDICES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "PAIRS", data.draw(st.integers(10, 60)), raising=False)
        check(small, indices, values, data.draw(st.integers(1, len(values) + 1)))


@pytest.mark.parametrize("dtype", INDICES)
@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 5000])
def test_contains(passes, n, dtype):
    """All, none, some, those before the first and after the last, and from any address."""
    all_of_them = ascending(n + 1, dtype)
    there, nothing = put(passes, all_of_them), np.zeros(0, dtype)
    around = np.concatenate([all_of_them[:1] - 3, all_of_them, all_of_them[-1:] + 3])
    for part in (slice(n), slice(1, None), slice(None, None, 3)):
        for sought in (all_of_them, all_of_them - 1, around, nothing):
            found = passes.contains(there[part], put(passes, sought))
            assert same([found], [array.contains(all_of_them[part], sought)])
            strided = put(passes, sought)[::2]
            assert same([passes.contains(there[part], strided)], [array.contains(all_of_them[part], sought[::2])])


@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)), st.sampled_from(INDICES), st.sampled_from(INDICES))
def test_contains_of_anything(passes, some, sought, of_some, of_sought):
    found = passes.contains(
        put(passes, np.array(sorted(some), of_some)), put(passes, np.array(sorted(sought), of_sought))
    )
    assert found.dtype == bool and found.tolist() == [i in some for i in sorted(sought)]


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)), st.sampled_from((1, 5000, 1 << 22)), st.data())
def test_values_among_indices_near_and_far(passes, some, sought, apart, data):
    values = np.array(sorted(sought), data.draw(st.sampled_from(FLOATS)))
    values[::3], values[1::7] = -np.inf, np.nan
    given = [np.array(sorted(each), np.int64) * apart for each in (some, sought)]
    found = passes.among(*(put(passes, x.astype(np.int32)) for x in given), put(passes, values))
    lacking = np.where(np.isin(given[1], given[0]), values, values.dtype.type(0))
    assert same([found], [lacking]) and same([array.among(*given, values)], [lacking])


def test_indices_in_no_order_are_missed_and_nothing_else_is_written():
    """Such as a broken transport may give; among these are some far below and far above the window."""
    indices = np.array([5, 1 << 20, 7, 0, 1 << 30, 3], np.int32)
    for sought in (indices, indices[::-1].copy(), np.sort(indices)):
        values = 1 + np.arange(len(sought), dtype=np.float32)
        found = cpu.among(indices, sought, values)
        assert np.isin(found, [0, *values]).all()


@emulated
def test_a_single_launch_and_no_wait(cuda, launches):
    indices, values = put(cuda, ascending(N, np.int32)), put(cuda, inputs(np.float32)["normal"])
    sought = put(cuda, ascending(N, np.int32)[::2].copy())
    copied, waited = len(DEVICE.copies), len(DEVICE.synchronised)
    for reuse in (False, True):
        cuda.truncate(indices, values, 300, reuse)
        assert len(launches) == 1
        launches.clear()
    assert all(given is kept for given, kept in zip((indices, values), cuda.truncate(indices, values, N), strict=True))
    assert cuda.contains(indices, sought[:0]).size == 0 and launches == []
    cuda.contains(indices, sought)
    cuda.contains(indices[:0], sought)
    assert len(launches) == 2
    assert len(DEVICE.copies) == copied and len(DEVICE.synchronised) == waited


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gradient_type", ["as residual", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["normal", "mostly-zero", "constant", "ties", "special"])
def test_the_largest_of_a_vector_whatever_the_threshold(cuda, dtype, gradient_type, name):
    x, gradient = inputs(dtype)[name], inputs(np.float32, N + 1)["student"]
    x[np.isnan(x)] = np.inf  # sums of NaN have other bits on a device
    types = {"as residual": dtype, "float32": np.float32, "float16": np.float16}
    gradient = gradient.astype(types[gradient_type]) if gradient_type in types else array.to_bfloat16(gradient)
    squares = np.square(inputs(dtype)["student"])
    squares[::7], squares[1::5] = np.inf, 0
    for start, beside in ((0, None), (1, squares)):
        sums = x + widened(gradient[start : start + N]).astype(dtype)
        scores = sums if beside is None else array.standardized(sums, beside)
        for k, most in [(1, 7), (300, 450), (N - 1, N), (N, N)]:
            columns, values = array.top_k_rows(scores[None], k)
            indices, found, least = cuda.top_k(put(cuda, scores), k)
            assert same((indices, found), (columns[0], values[0])) and int(least) == magnitude_bits(values).min()
            for threshold in thresholds(scores, 0.5, 1 - k / N, 1 - (k + most) / 2 / N):
                there, add = put(cuda, x.copy()), put(cuda, gradient)[start : start + N]
                over, waits = None if beside is None else put(cuda, beside), len(DEVICE.synchronised)
                *found, least, count = cuda.largest(there, k, max(threshold, 1), most, add, over)
                assert len(DEVICE.synchronised) == waits
                assert same(found, (columns[0], values[0] + dtype(0))) and int(least) == magnitude_bits(values).min()
                assert int(count) == (magnitude_bits(scores) >= max(threshold, 1)).sum()
                assert there.tobytes() == sums.tobytes()


@emulated
def test_a_threshold_serves_until_a_later_one_is_known(cuda, monkeypatch):
    x, state, used = inputs(np.float32)["normal"], ThresholdState(), []
    monkeypatch.setattr(cuda.told.Told, "known", lambda self: len(used) == 3)
    for step in range(6):
        used += [state.threshold.latest() if step else 0]
        selected, state = Threshold(zeros=True).select(put(cuda, x), 300, state)
        assert same(selected[:2], array.truncate(np.arange(N, dtype=np.int32), x, 300))
    assert used[:3] == [0, 0, 0] and used[3] > 1 and used[4:] == [used[3]] * 2 and int(state.threshold) > 1
