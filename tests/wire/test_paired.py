"""Two numbers an entry in one message, and the codec that keeps an order of magnitude."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.sparse import SparseVector, equal_boundaries, regions_of
from sparse_mpi.wire import BFloat16, BitPacked, Int8
from sparse_mpi.wire.codecs import Log4
from sparse_mpi.wire.packed import Complete, Paired, paired

LOG4 = Complete(Log4())
MAGNITUDES = st.one_of(st.just(0.0), st.floats(2.0**-60, 2.0**60, width=32))
INFINITE = (np.inf, np.nan, 1e39)  # the last one as float64


def message(wire, values, cuts):
    size, bounds = len(values), equal_boundaries(len(values) // 2, cuts) * 2
    vector = SparseVector(np.arange(size, dtype=np.int32), values, size)
    packed = wire.pack(vector, np.diff(bounds), regions_of(bounds))
    lengths = wire.lengths_of(np.diff(bounds), regions_of(bounds), size, values.dtype)
    assert packed.lengths.tolist() == lengths.tolist() and len(packed.buffer) == lengths.sum()
    found = wire.unpack(packed.buffer, lengths, regions_of(bounds), size, values.dtype)
    assert found.indices.tolist() == vector.indices.tolist()
    assert found.values.tobytes() == packed.vector.values.tobytes()
    return found.values


@given(
    st.one_of(
        st.lists(each, min_size=1, max_size=300) for each in (MAGNITUDES, MAGNITUDES | st.sampled_from(INFINITE))
    ),
    st.integers(1, 5),
    st.sampled_from([np.float32, np.float64]),
)
def test_a_number_keeps_its_order_of_magnitude_beside_what_float32_cannot_hold(values, cuts, dtype):
    """That arrives as Inf, and leaves a range of 2^28 to its neighbours, whose range is 2^31 without it."""
    with np.errstate(over="ignore"):
        x = np.array(values + values[:1] * (len(values) % 2), dtype)
        infinite = ~(x < 1e39)
    found = message(LOG4, x, cuts)
    assert np.isinf(found[infinite]).all() and np.isfinite(found[~infinite]).all()
    for first, stop in regions_of(equal_boundaries(len(x) // 2, cuts) * 2):
        for start in range(first, stop, 128):
            part, got, kept = (y[start : min(start + 128, stop)] for y in (x, found, ~infinite))
            lowest = part[kept].max(initial=0.0) * 2.0 ** (-31 if kept.all() else -29)
            part, got = part[kept], got[kept]
            near = part >= lowest
            assert (got[near] <= 2 * part[near]).all() and (part[near] <= 2 * got[near]).all()
            assert (got[~near] <= 4 * lowest).all()


def test_powers_and_zeros():
    assert message(LOG4, np.zeros(6, np.float32), 1).tolist() == [0] * 6
    assert message(LOG4, np.array([1, 0.3, 1 / 64, 1.9], np.float32), 1).tolist() == [1, 0.25, 1 / 64, 1]
    tiny, huge = np.float32(1e-40), np.float32(3e38)
    assert (message(LOG4, np.array([huge, huge], np.float32), 1) >= huge / 2).all()
    assert message(LOG4, np.array([tiny, 0], np.float32), 1)[0] <= 2 * tiny


@pytest.mark.parametrize("first", [Int8(), BFloat16()])
@given(st.integers(1, 200), st.integers(1, 6))
def test_each_of_two_is_what_it_is_alone(first, entries, cuts):
    rng = np.random.default_rng(entries)
    one, two = rng.standard_normal(entries).astype(np.float32), rng.random(entries).astype(np.float32)
    both = message(Paired((Complete(first), LOG4)), paired(one, two), cuts)
    bounds = equal_boundaries(entries, cuts)
    for values, wire, found in ((one, Complete(first), both[::2]), (two, LOG4, both[1::2])):
        alone = SparseVector(np.arange(entries, dtype=np.int32), values, entries)
        assert wire.pack(alone, np.diff(bounds), regions_of(bounds)).vector.values.tobytes() == found.tobytes()


def test_two_without_rounding_arrive_as_they_are():
    wire, values = Paired((BitPacked(), BitPacked())), np.random.default_rng(0).standard_normal(40)
    assert wire.lossless and message(wire, values, 3).tobytes() == values.tobytes()


def test_what_is_cut_short_is_refused():
    wire = Paired((Complete(Int8()), LOG4))
    with pytest.raises(ValueError, match="it is 9 long where its entries take"):
        wire.unpack(np.zeros(9, np.uint8), np.array([9]), np.array([[0, 20]]), 20, np.float32)
