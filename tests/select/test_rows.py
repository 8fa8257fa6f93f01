"""Rows and their quotas, and the messages that rely on them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import SparseVector
from sparse_mpi.predict.models import MODELS
from sparse_mpi.rows import RULES, fewest, quotas
from sparse_mpi.sparse import Layout
from sparse_mpi.wire.patterns import column_bytes, column_type, decode_rows, encode_rows

SHAPES = st.lists(
    st.lists(st.integers(0, 7), max_size=4).map(tuple) | st.tuples(st.integers(1, 3), st.integers(200, 400)),
    min_size=1,
    max_size=6,
)
RULE = st.sampled_from(RULES)


@st.composite
def patterns(draw):
    """A layout, k, a rule, dense tensors, and the quotas of it all."""
    layout = Layout(tuple(draw(SHAPES.filter(lambda shapes: Layout(tuple(shapes)).size > 0))))
    k, rule = draw(st.integers(1, layout.size)), draw(RULE)
    numbers = st.sets(st.integers(0, len(layout.shapes) - 1)).map(lambda chosen: tuple(sorted(chosen)))
    dense = draw(st.none() | numbers)
    return layout, k, rule, dense, quotas(layout, k, rule, dense)


def lines(tensor):
    """Rows of elements, and their quotas, one by one: what `Matrix` says in numbers."""
    for block in tensor.blocks:
        for row in range(block.first, block.last):
            slab, inside = divmod(row, tensor.stride)
            first = tensor.offset + slab * tensor.stride * tensor.length + inside
            yield [first + column * tensor.stride for column in range(tensor.length)], block.quota


@given(patterns())
def test_every_element_is_in_one_row_and_every_row_has_its_share(drawn):
    layout, k, rule, dense, pattern = drawn
    rows = [line for tensor in pattern for line in lines(tensor)]
    assert sorted(i for elements, _ in rows for i in elements) == list(range(layout.size))
    floor = sum(tensor.entries for tensor in fewest(layout, rule, dense))
    assert sum(quota for _, quota in rows) == max(k, floor)
    assert all(1 <= quota <= len(elements) for elements, quota in rows)
    flat = [i for i, shape in enumerate(layout.shapes) if len(shape) < 2] if len(layout.shapes) > 1 else []
    whole = set(flat if dense is None else dense)
    assert all(tensor.whole for tensor in pattern if tensor.tensor in whole)
    shared = sorted((len(e), -e[0], q) for t in pattern if t.tensor not in whole for e, q in lines(t))
    assert all(a[2] <= b[2] for a, b in pairwise(shared)), "no longer row has less, of equal ones no lower row"


@given(patterns())
def test_no_row_strays_from_its_proportion(drawn):
    """Rows above the floor of one entry have their share of what the others leave, to less than one entry."""
    layout, k, rule, dense, pattern = drawn
    if k <= sum(tensor.entries for tensor in fewest(layout, rule, dense)):
        assert pattern == fewest(layout, rule, dense)
        return
    above = [(len(e), q) for t in pattern if not t.whole for e, q in lines(t) if q > 1]
    rates = sorted(quota / length for length, quota in above)
    if rates:
        shortest = min(length for length, _ in above)
        assert rates[-1] - rates[0] < 2 / shortest


def test_rules_are_those_of_the_paper_and_of_the_program():
    layout = Layout.of([(4, 3, 2, 2), (5,)])
    output, axis1 = (quotas(layout, 20, rule)[0] for rule in RULES)
    assert (output.rows, output.length, axis1.rows, axis1.length) == (4, 12, 16, 3)
    gradient = np.arange(48).reshape(4, 3, 2, 2)
    assert [e for e, _ in lines(output)] == gradient.reshape(4, 12).tolist()
    assert [e for e, _ in lines(axis1)] == gradient.transpose(0, 2, 3, 1).reshape(16, 3).tolist()


def test_largest_remainders_by_hand():
    """10 dense; 9 entries for rows of 8, 8, 5, 5, 5: 2.32 twice, 1.45 three times, so 2, 2, 1, 1, 1 and two to give."""
    layout = Layout.of([(3, 5), (10,), (2, 8)])
    assert [(t.quota, t.extra) for t in quotas(layout, 19)] == [(1, 2), (10, 0), (2, 0)]
    assert [(t.quota, t.extra) for t in quotas(layout, 20)] == [(2, 0), (10, 0), (2, 0)]
    assert [(t.quota, t.extra) for t in quotas(layout, 12)] == [(1, 0), (10, 0), (1, 0)]
    assert [(t.quota, t.extra) for t in quotas(Layout.of([(2, 1), (1, 90), (1, 9)]), 11)] == [(1, 0), (8, 0), (1, 0)]


def test_what_the_layout_says_of_dense_tensors():
    assert not quotas(Layout.of(100), 7)[0].whole and quotas(Layout.of(100), 7)[0].entries == 7
    assert [t.whole for t in quotas(Layout.of([(9,), (3, 9), ()]), 15)] == [True, False, True]
    assert [t.whole for t in quotas(Layout.of([(9,), (3, 9)]), 15, "output", ())] == [False, False]
    with pytest.raises(ValueError, match=r"dense must have numbers of tensors, 0 to 0 .* got \[1\]"):
        quotas(Layout.of(100), 7, "output", (1,))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_an_entry_of_a_model_takes_at_most_six_bytes(model, rule):
    layout = Layout.of([shape for _, shape in MODELS[model]])
    pattern = quotas(layout, layout.size // 100, rule)
    assert sum(t.entries for t in pattern) == layout.size // 100
    sparse = tuple(t for t in pattern if not t.whole)
    assert column_bytes(sparse) <= 2 * sum(t.entries for t in sparse)


@given(patterns(), st.sampled_from([np.float32, np.float64]), st.integers(1, 3), st.booleans())
def test_messages_of_rows_round_trip(drawn, dtype, ranks, plain):
    layout, *_, pattern = drawn
    pattern = tuple(t.merged() if plain and t.tensor % 2 else t for t in pattern)
    rng = np.random.default_rng(layout.size)
    vectors = []
    for _ in range(ranks):
        chosen = [i for t in pattern for e, q in lines(t) for i in rng.choice(e, q, replace=False)]
        indices = np.sort(chosen).astype(np.int32)
        vectors.append(SparseVector(indices, rng.standard_normal(len(chosen)).astype(dtype), layout.size))
    messages = np.stack([encode_rows(vector, pattern) for vector in vectors])
    length = sum(q * (np.dtype(dtype).itemsize + (1 if len(e) <= 256 else 2)) for t in pattern for e, q in lines(t))
    assert messages.shape == (ranks, length) and messages.dtype == np.uint8
    assert length == vectors[0].nnz * np.dtype(dtype).itemsize + column_bytes(pattern)
    back = decode_rows(messages, pattern, layout.size, dtype)
    assert back.indices.dtype == np.int32 and back.values.dtype == dtype and back.size == layout.size
    for rank, vector in enumerate(vectors):
        part = slice(rank * vector.nnz, (rank + 1) * vector.nnz)
        order = np.argsort(back.indices[part])
        assert back.indices[part][order].tolist() == vector.indices.tolist()
        assert back.values[part][order].tobytes() == vector.values.tobytes()


@pytest.mark.parametrize(("length", "width"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4), (2**31, 8)])
def test_columns_are_no_wider_than_rows_need(length, width):
    assert column_type(length).itemsize == width
    assert length - 1 <= np.iinfo(column_type(length)).max


def test_the_last_columns_of_long_rows_survive():
    layout = Layout.of([(2, 256), (1, 257), (1, 65_536), (1, 65_537)])
    pattern = fewest(layout, "output", None)
    last = np.array([255, 511, 768, 66_304, 131_841], np.int32)
    vector = SparseVector(last, np.arange(5, dtype=np.float32), layout.size)
    message = encode_rows(vector, pattern)
    assert len(message) == 5 * 4 + 1 + 1 + 2 + 2 + 4
    assert decode_rows(message[None], pattern, layout.size, np.float32).indices.tolist() == last.tolist()
