"""Ascending runs are added up without a sort, with gaps or without: the bytes of the whole-array kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels import array

from ..fakes import fake_cuda
from ..fakes.fake_device import DEVICE
from .on_cuda import back, emulated, put, same

FLOATS, INDICES = [np.float32, np.float64], [np.int32, np.int64]
VALUES = [0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 1e9, -1e9, 1e20, np.inf]  # a sum that is NaN has other bits on a device
LENGTHS = [(7,), (0,), (300, 300), (0, 5, 0), (900, 1, 0, 2000), 17 * (40,), 70 * (9,)]
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def runs_of(lengths, size, seed, index=np.int32, dtype=np.float32):
    """Runs of so many indices below ``size``, one after the other, and values of which sums depend on the order."""
    rng = np.random.default_rng(seed)
    start = 2**40 if index is np.int64 else 0
    runs = [np.sort(rng.choice(size, length, replace=False)) for length in lengths]
    return (start + np.concatenate(runs)).astype(index), rng.choice(VALUES, sum(lengths)).astype(dtype)


def check(passes, indices, values, lengths):
    """Merge with gaps and without, and count and keep what reaches thresholds while there are gaps."""
    lengths, size = np.array(lengths), int(indices.max(initial=0)) + 1
    expected = array.merge(indices, values, size)
    here = put(passes, indices), put(passes, values)
    assert same(passes.merge(*here, size, lengths=lengths), expected) and same(passes.merge(*here, size), expected)
    *sums, chosen = passes.merge_loosely(*here, size, lengths=lengths)
    if chosen is not None:
        assert same(passes.compress(*sums, chosen), expected)
        assert back(chosen).sum() == len(expected[0])
    bits = magnitude_bits(expected[1]).astype(np.int64)
    limits = np.unique(np.concatenate([[0], bits[:: max(1, len(bits) // 5)]]))
    counts = [int((bits >= limit).sum()) for limit in limits]
    assert passes.count(sums[1], limits, chosen).tolist() == counts
    for limit, count in zip([*limits.tolist(), 1 << 8 * values.itemsize - 1], [*counts, 0], strict=True):
        reaching = expected[0][bits >= limit], expected[1][bits >= limit]
        assert same(passes.compress(*sums, chosen, count, limit), reaching)
        assert same(passes.compress(*sums, chosen, threshold=limit), reaching)


@pytest.mark.thin(1)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=len)
def test_runs_are_added_up_in_their_order(passes, lengths, dtype, index):
    """Overlapping, empty, of any lengths, and more of them than are searched."""
    check(passes, *runs_of(lengths, 3000, len(lengths), index, dtype), lengths)


@given(st.data())
def test_runs_of_anything(passes, data):
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=9))
    check(passes, *runs_of(lengths, data.draw(st.sampled_from([12, 40, 5000])), sum(lengths)), lengths)


@pytest.mark.parametrize("name", ["FEW_RUNS", "FEW_SEARCHES"])
def test_sums_do_not_depend_on_whether_runs_are_sorted_or_searched(cuda, monkeypatch, name):
    monkeypatch.setattr(cuda, "FEW_RUNS", 0)
    monkeypatch.setattr(cuda, name, 1 << 30)
    check(cuda, *runs_of(12 * (60,), 400, 0), 12 * (60,))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("resident", [1, 3])
def test_in_any_order_of_blocks(cuda, monkeypatch, resident, seed):
    monkeypatch.setattr(fake_cuda, "RESIDENT", resident)
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    monkeypatch.setattr(cuda, "SELECTING", 128)
    check(cuda, *runs_of(5 * (100,), 300, seed), 5 * (100,))


@emulated
def test_runs_with_gaps_are_one_launch_and_nobody_waits(cuda, launches):
    """And without gaps there is one more, and one wait."""
    runs, limit = runs_of((300, 300), 900, 0), int(np.float32(1).view(np.int32))
    count = int((magnitude_bits(array.merge(*runs, 900)[1]) >= limit).sum())
    indices, values = (put(cuda, part) for part in runs)
    copied, waited = len(DEVICE.copies), len(DEVICE.synchronised)
    for _ in range(3):  # nor for memory that is let go
        *sums, chosen = cuda.merge_loosely(indices, values, 900, lengths=np.array([300, 300]))
    assert len(launches) == 3 and len(DEVICE.synchronised) == waited
    cuda.compress(*sums, chosen, count, limit)
    assert len(launches) == 4 and len(DEVICE.synchronised) == waited
    cuda.merge(indices, values, 900, lengths=np.array([300, 300]))
    assert len(launches) == 6 and len(DEVICE.synchronised) == waited + 1 and len(DEVICE.copies) == copied


@emulated
def test_words_are_cleared_once_for_many_kernels(cuda):
    """Every kernel has words of its own; those of another stream are cleared there."""
    from sparse_mpi.kernels.cuda.cleared import WORDS, cleared

    began = DEVICE.launched
    some = [cleared(5) for _ in range(10)]
    assert DEVICE.launched == began + 1
    for number, words in enumerate(some):
        assert words.size == 5 and words.dtype == np.uint64 and not back(words).any()
        words.fill(number + 1)
    assert [back(words).tolist() for words in some] == [[number + 1] * 5 for number in range(10)]
    began = DEVICE.launched
    assert not back(cleared(WORDS // 4 + 1)).any() and DEVICE.launched == began + 1
    with cuda.cupy.cuda.Stream(non_blocking=True):
        assert not back(cleared(5)).any() and DEVICE.launched == began + 2
    assert not back(cleared(5)).any() and DEVICE.launched == began + 2
    for _ in range(5):
        words = cleared(WORDS // 4)
        assert not back(words).any()
        words.fill(1)
    assert not DEVICE.races
