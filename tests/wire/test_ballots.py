"""Ballots, and messages that leave out what their receiver knows."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.sparse import SparseVector, equal_boundaries, regions_of, split_counts
from sparse_mpi.wire.codecs import BFloat16, Int2, Int4, Int8, Unrounded
from sparse_mpi.wire.packed import (
    Complete,
    ShortComplete,
    ShortInt8,
    ballots_lengths,
    pack_ballots,
    pack_positions,
    positions_lengths,
    unpack_ballots,
    unpack_positions,
)


def votes(values, n=5000, dtype=np.float32) -> SparseVector:
    values = np.asarray(values, dtype)
    indices = np.sort(np.random.default_rng(len(values)).choice(n, len(values), replace=False)).astype(np.int32)
    return SparseVector(indices, values, n)


def there_and_back(vector: SparseVector, messages: int = 3) -> tuple[SparseVector, SparseVector, int]:
    """Return what the sender says will arrive, what arrives, and the bytes."""
    bounds = equal_boundaries(vector.size, messages)
    counts, regions = split_counts(vector, bounds), regions_of(bounds)
    packed = pack_ballots(vector, counts, regions)
    arrived = unpack_ballots(packed.buffer, counts, regions, vector.size, vector.values.dtype)
    assert len(packed.buffer) == packed.lengths.sum() == ballots_lengths(counts, regions).sum()
    return packed.vector, arrived, len(packed.buffer)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("messages", [1, 3, 40])
def test_magnitudes_arrive_to_a_quarter_of_an_octave(dtype, messages):
    rng = np.random.default_rng(0)
    sent = votes(rng.uniform(1.5, 3.4, 100) * rng.choice([-1, 1], 100), dtype=dtype)
    said, arrived, length = there_and_back(sent, messages)
    assert arrived.values.tobytes() == said.values.tobytes() and arrived.values.dtype == dtype
    np.testing.assert_array_equal(arrived.indices, sent.indices)
    np.testing.assert_array_equal(np.sign(arrived.values), np.sign(sent.values))
    assert (np.abs(arrived.values / sent.values - 1) < 1 / 4).all()
    assert length <= 100 * 1.6 + 9 * messages


def test_equal_votes_seldom_tie_and_keep_their_order():
    said = there_and_back(votes(np.concatenate([np.ones(50), np.full(50, 2.0)])))[0].values
    assert len(np.unique(said)) == 100 and said[:50].max() < said[50:].min()


def test_a_tiny_vote_does_not_hide_what_the_others_are_worth():
    said = there_and_back(votes([1e-3, *np.linspace(1, 2, 99)]))[0].values
    assert 0 < said[0] <= said[1:].min() and said[1] < said[50] < said[99]


def test_what_is_not_finite_arrives_as_infinite_and_nothing_else_does():
    largest = np.finfo(np.float32).max
    values = np.array([np.nan, np.inf, -np.inf, largest, -largest, 1, 1, 1])
    for dtype in (np.float32, np.float64):
        said, arrived, _ = there_and_back(votes(values, dtype=dtype))
        assert arrived.values.tobytes() == said.values.tobytes()
        np.testing.assert_array_equal(np.isinf(said.values), [True] * 3 + [False] * 5)
        np.testing.assert_array_equal(np.sign(said.values[:5]), [1, 1, 1, 1, -1])


@pytest.mark.parametrize("values", [[0, 0], [0, 3, -0.0, -5], [np.nan, 0]])
def test_zeros_arrive_as_zeros_and_change_no_other(values):
    said, arrived, _ = there_and_back(votes(values))
    assert arrived.values.tobytes() == said.values.tobytes()
    np.testing.assert_array_equal(said.values == 0, np.array(values) == 0)
    own = votes(values)
    others = SparseVector(own.indices[own.values != 0], own.values[own.values != 0], own.size)
    assert said.values[own.values != 0].tobytes() == there_and_back(others)[0].values.tobytes()


def test_no_votes_are_no_bytes():
    said, arrived, length = there_and_back(votes([]))
    assert length == said.nnz == arrived.nnz == 0


WHOLE = [Complete(codec) for codec in (Unrounded(), BFloat16(), Int8(), Int4(), Int2())]


@pytest.mark.parametrize("wire", [*WHOLE, ShortComplete(ShortInt8())], ids=str)
@pytest.mark.parametrize("m", [0, 2, 300])
def test_complete_messages_hold_nothing_but_values_and_scales_of_four_or_two_bytes(wire, m):
    bounds, codec = equal_boundaries(m, 3), wire.codec
    vector = SparseVector(np.arange(m, dtype=np.int32), np.random.default_rng(m).standard_normal(m, np.float32), m)
    packed = wire.pack(vector, np.diff(bounds), regions_of(bounds))
    arrived = wire.unpack(packed.buffer, packed.lengths, regions_of(bounds), m, np.float32)
    assert arrived.values.tobytes() == packed.vector.values.tobytes()
    np.testing.assert_array_equal(arrived.indices, vector.indices)
    blocks = -(-np.diff(bounds) // codec.block) if codec.block else np.zeros(3)
    codes = -(-np.diff(bounds) // codec.together) * (codec.code_bytes or 4)
    assert len(packed.buffer) == codes.sum() + wire.scale_bytes * blocks.sum()
    if type(codec) in (Int8, ShortInt8):
        assert np.abs(arrived.values - vector.values).max(initial=0) <= 1.5 / 127 * np.abs(vector.values).max(initial=1)


def test_positions_come_back_without_a_count():
    sent, bounds = votes(np.ones(50)).indices, equal_boundaries(5000, 4)
    counts, regions = np.histogram(sent, bounds)[0], regions_of(bounds)
    buffer = pack_positions(sent, counts, regions)
    assert len(buffer) == positions_lengths(counts, regions).sum() <= 50 * 8.7 / 8 + 4
    np.testing.assert_array_equal(unpack_positions(buffer, counts, regions, 5000), sent)
