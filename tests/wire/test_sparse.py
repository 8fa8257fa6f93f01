"""The algebra of sparse vectors, against dense arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.arrays import index_dtype, magnitude_bits
from sparse_mpi.sparse import (
    Layout,
    SparseVector,
    concatenate,
    equal_boundaries,
    merge,
    split_counts,
    subtract,
    take,
    truncate,
)

FLOATS = st.floats(-100, 100, width=32)


@st.composite
def vectors(draw, size=60, count=None):
    indices = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
    values = draw(st.lists(FLOATS, min_size=len(indices), max_size=len(indices)))
    return SparseVector(np.array(sorted(indices), np.int32), np.array(values, np.float32), size)


def is_form(v):
    return v.indices.dtype == np.int32 and (np.diff(v.indices) > 0).all() and v.indices.shape == v.values.shape


@given(st.lists(vectors(), min_size=1, max_size=6))
def test_merge_adds_in_rank_order_to_the_bit(parts):
    merged = merge(concatenate(parts))
    expected = np.zeros(60, np.float32)
    for part in parts:
        expected[part.indices] += part.values
    assert is_form(merged)
    assert set(merged.indices) == set(np.concatenate([p.indices for p in parts]))
    assert (merged.to_dense() == expected).all()


@given(vectors(), vectors())
def test_subtract_is_dense_subtraction(a, b):
    difference = subtract(a, b)
    assert is_form(difference)
    assert (difference.to_dense() == a.to_dense() - b.to_dense()).all()


@given(vectors(), st.integers(1, 70))
def test_truncate_keeps_the_k_largest_and_the_lower_index_of_ties(v, k):
    kept = truncate(v, k)
    order = np.lexsort((v.indices, -np.abs(v.values)))
    assert kept.indices.tolist() == np.sort(v.indices[order[:k]]).tolist()
    assert (kept.values == v.to_dense()[kept.indices]).all()


def test_truncate_treats_nan_and_inf_as_largest():
    v = SparseVector(np.arange(4, dtype=np.int32), np.array([5.0, np.nan, -np.inf, 7.0], np.float32), 4)
    assert truncate(v, 2).indices.tolist() == [1, 2]
    assert truncate(v, 1).indices.tolist() == [1]


@given(vectors(), st.lists(st.integers(0, 60), max_size=4))
def test_split_counts_cut_at_boundaries(v, cuts):
    boundaries = np.array([0, *sorted(cuts), 60])
    counts = split_counts(v, boundaries)
    assert counts.sum() == v.nnz and counts.dtype == np.int64
    ends = np.cumsum(counts)
    for q, (stop, count) in enumerate(zip(ends, counts, strict=True)):
        region = v.indices[stop - count : stop]
        assert ((boundaries[q] <= region) & (region < boundaries[q + 1])).all()


def test_take():
    v = SparseVector(np.array([1, 5, 9], np.int32), np.array([1.0, 2.0, 3.0]), 10)
    assert take(v, slice(0, 2)).indices.tolist() == [1, 5]
    assert take(v, np.array([False, False, True])).values.tolist() == [3.0]
    assert merge(take(v, slice(0, 0))).nnz == 0


def test_magnitude_bits_order_like_magnitudes():
    x = np.array([0.0, -0.0, 1e-40, 1.0, -2.0, 1e30, np.inf, np.nan])
    for dtype in (np.float32, np.float64):
        bits = magnitude_bits(x.astype(dtype))
        assert (np.diff(bits) >= 0).all() and bits[0] == bits[1] == 0 and bits[-1] > bits[-2]


@pytest.mark.parametrize("ranks", [1, 3, 7, 1024])
def test_equal_boundaries_differ_by_at_most_one(ranks):
    widths = np.diff(equal_boundaries(1000, ranks))
    assert widths.sum() == 1000 and widths.max() - widths.min() <= 1


def test_index_dtype_grows_with_the_vector():
    assert index_dtype(2**31 - 1) == np.int32 and index_dtype(2**31) == np.int64


def test_layout_of_shapes():
    layout = Layout.of([(3, 4), (5,), ()])
    assert layout.sizes == (12, 5, 1) and layout.offsets == (0, 12, 17) and layout.size == 18
    assert Layout.of(7).shapes == ((7,),) and Layout.of(layout) is layout


@pytest.mark.parametrize("bad", [0, -3, [], [(0, 4)], [(-1, -1)], [(3,), (-2, -2)], Layout(((-1, -1),))])
def test_layout_without_elements(bad):
    with pytest.raises(ValueError, match="layout must have no negative dimension, at least one element and fewer"):
        Layout.of(bad)
