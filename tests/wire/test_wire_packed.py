"""Packed messages: what goes in comes out, rounded as the codec says, in as many bytes as announced."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import kernels, wire
from sparse_mpi.arrays import index_dtype
from sparse_mpi.kernels import array
from sparse_mpi.kernels.array import count_bytes
from sparse_mpi.sparse import SparseVector, concatenate
from sparse_mpi.wire import WIRES

PACKED = [name for name, wire in WIRES.items() if wire.codec is not None]
LOSSY = [name for name in PACKED if not WIRES[name].lossless]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


@pytest.fixture(params=["compiled", "whole-array"])
def kernel_set(request, monkeypatch):
    if request.param == "whole-array":
        monkeypatch.setattr(kernels, "host", lambda: array)


@st.composite
def vectors(draw):
    """A vector of several regions, empty, full, crowded at one end or evenly filled, and what lies in each region."""
    widths = draw(st.lists(st.sampled_from([1, 2, 7, 64, 255, 256, 257, 1000, 70_000]), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(DTYPES))
    first, indices, counts, regions = draw(st.sampled_from([0, 5, 2**31 - 2**20])), [], [], []
    for width in widths:
        room = draw(st.sampled_from([width, max(1, width // 50)]))
        count = draw(st.sampled_from([0, 1, room // 100, room // 7, room // 2, room - 1, room]))
        start = draw(st.integers(0, width - room))
        indices.append(first + start + np.sort(rng.choice(room, count, replace=False)))
        counts.append(count)
        regions.append((first, first + width))
        first += width
    values = rng.standard_normal(sum(counts)) * 10.0 ** draw(st.integers(-6, 4))
    values[: len(SPECIAL)] = SPECIAL[: len(values)]
    size = draw(st.sampled_from([first, 2**33]))
    vector = SparseVector(np.concatenate(indices).astype(index_dtype(size)), values.astype(dtype), size)
    return vector, np.array(counts), np.array(regions)


@pytest.mark.parametrize("name", PACKED)
@given(given=vectors())
def test_round_trip_and_length(name, given):
    """Of many messages at once, on every host kernel set, with the same bytes."""
    format_, (vector, counts, regions) = WIRES[name], given
    dtype = vector.values.dtype
    packed = format_.pack(vector, counts, regions)
    assert packed.buffer.dtype == np.uint8 and packed.buffer.ndim == 1
    assert packed.lengths.tolist() == format_.lengths_of(counts, regions, vector.size, dtype).tolist()
    assert packed.lengths.sum() == len(packed.buffer) and ((packed.lengths == 0) == (counts == 0)).all()
    widths = regions[:, 1] - regions[:, 0]
    for each, width, length in zip(counts.tolist(), widths.tolist(), packed.lengths.tolist(), strict=True):
        assert length <= format_.max_size(each, width).bytes(np.dtype(dtype).itemsize)
    assert packed.lengths.sum() <= format_.max_size(counts.sum(), widths.sum(), len(counts)).bytes(
        np.dtype(dtype).itemsize
    )
    assert (packed.vector is vector) == format_.lossless
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            assert_same(format_.unpack(packed.buffer, packed.lengths, regions, vector.size, dtype), packed.vector)
            assert format_.pack(vector, counts, regions).buffer.tobytes() == packed.buffer.tobytes()
            patch.setattr(kernels, "host", lambda: array)


def assert_same(found, expected):
    assert found.indices.dtype == expected.indices.dtype and found.indices.tobytes() == expected.indices.tobytes()
    assert found.values.dtype == expected.values.dtype and found.values.tobytes() == expected.values.tobytes()
    assert found.size == expected.size


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("nnz", [0, 1, 200, 980, 1000])
def test_sums_are_dense_where_that_is_shorter_and_lose_their_zeros(kernel_set, name, nnz):
    format_, rng = WIRES[name], np.random.default_rng(nnz)
    parts, region = [], np.array([[500, 1500], [1500, 2500]])
    for start, _ in region:
        indices = (start + np.sort(rng.choice(1000, nnz, replace=False))).astype(np.int32)
        parts.append(SparseVector(indices, rng.standard_normal(nnz).astype(np.float32), 2500))
    packed = [format_.pack_sum(part, own) for part, own in zip(parts, region, strict=True)]
    dense = format_.lengths_of(np.array([1000]), region[:1], 2500, np.float32)[0]
    assert all(len(message.buffer) <= dense for message in packed)
    assert all((len(message.buffer) == dense) == (nnz >= 980) for message in packed)
    buffer, lengths = np.concatenate([m.buffer for m in packed]), np.concatenate([m.lengths for m in packed])
    found = format_.unpack_sums(buffer, lengths, region, 2500, np.float32)
    assert_same(found, concatenate([message.vector for message in packed]))
    if format_.lossless:
        assert all(message.vector is part for message, part in zip(packed, parts, strict=True))


BYTES = {"packed": 5.12, "packed+bf16": 3.12, "packed+fp16": 3.12, "packed+int8": 2.16}
BYTES |= {"packed+int4": 1.66, "packed+int2": 1.41}


@pytest.mark.parametrize(("name", "most"), BYTES.items())
def test_bytes_a_pair_at_one_percent(name, most):
    small, large = (
        WIRES[name].lengths_of(np.array([count]), np.array([[0, 100 * count]]), 100 * count, np.float32)[0] / count
        for count in (64, 1500)
    )
    assert small <= most + 0.13 and large <= most


def test_the_most_that_a_message_takes():
    """Of one entry, or a few, in a region that needs 31 or 32 bits an index, and in ones beyond."""
    entries, widths = np.array([(c, u) for c in range(1, 40) for u in (2**31 - 1, 2**31, 2**32, 2**40, c, c + 1)]).T
    regions = np.stack([0 * widths, widths], axis=1)
    for name in PACKED:
        for dtype in DTYPES:
            lengths = WIRES[name].lengths_of(entries, regions, 0, dtype)
            for each, width, length in zip(entries.tolist(), widths.tolist(), lengths.tolist(), strict=True):
                most = WIRES[name].max_size(each, width).bytes(np.dtype(dtype).itemsize)
                assert length <= most <= 1.5 * length + 8


def test_names_in_checkpoints_stay():
    """A checkpoint is only restored with the wire whose repr it holds."""
    assert repr(WIRES["packed"]) == "BitPacked(codec=Exact())"
    for bits in (8, 4, 2):
        assert repr(WIRES[f"packed+int{bits}"]) == f"BitPacked(codec=Int{bits}())"


def rounded(name, values):
    values = np.asarray(values)
    vector = SparseVector(np.arange(len(values), dtype=np.int32) * 50, values, 50 * len(values))
    packed = wire.pack_whole(WIRES[name], vector)
    return wire.unpack_whole(WIRES[name], packed.buffer, packed.lengths, vector.size, values.dtype).values


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_finite_stays_finite_and_what_is_not_shows(kernel_set, name, dtype):
    largest = float(np.finfo(dtype).max)
    found = rounded(name, np.array([np.nan, np.inf, -np.inf, largest, -largest, 3e38, 1.0, 0.0], dtype))
    assert found.dtype == dtype
    assert not np.isfinite(found[:3]).any() and np.isfinite(found[3:]).all()
    assert np.sign(found[3:6]).tolist() == [1, -1, 1] and found[7] == 0
    if WIRES[name].codec.block == 0:  # values with a scale of their own cannot be infinite
        assert np.isnan(found[0]) and found[1:3].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(("name", "kind"), [("packed+bf16", ml_dtypes.bfloat16), ("packed+fp16", np.float16)])
def test_half_precision_is_rounded_to_nearest_even(kernel_set, name, kind):
    """Around every number that there is: itself, the middle to the next one, and on both sides of the middle."""
    every = np.arange(0x7B00 if kind == np.float16 else 0x7F00, dtype=np.uint16).view(kind).astype(np.float32)
    middles = every[:-1] + np.diff(every) / 2
    values = np.concatenate([every, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    found, expected = rounded(name, np.append(values, -values)), np.append(values, -values).astype(kind)
    assert found.tobytes() == expected.astype(np.float32).tobytes()


def test_every_byte_value_and_block_of_int8(kernel_set):
    """Multiples of the scale arrive as they are, whatever the block."""
    steps = np.concatenate([np.arange(-127, 128), [127, 5, -127]]).astype(np.float32)
    found = rounded("packed+int8", np.append(steps[:128] * 0.25, steps[128:256] * 3))
    assert np.allclose(found, np.append(steps[:128] * 0.25, steps[128:256] * 3), rtol=1e-6)


def test_int8_is_unbiased(kernel_set):
    """The mean error of many values is as small as chance makes it, of each size between two steps."""
    rng = np.random.default_rng(3)
    values = rng.uniform(-1, 1, 200_000).astype(np.float32)
    error = (rounded("packed+int8", values) - values).astype(np.float64) * 127
    assert np.abs(error).max() < 1.02
    for fraction in np.array_split(np.argsort(values * 127 % 1), 10):
        assert abs(error[fraction].mean()) < 4.5 * 0.5 / np.sqrt(len(fraction))
    assert abs(error.mean()) < 4.5 * np.sqrt(1 / 6 / len(values))
    assert rounded("packed+int8", values).tobytes() == rounded("packed+int8", values).tobytes()


@pytest.mark.parametrize("name", LOSSY)
def test_values_of_half_precision_pass_16_bit_codecs_as_they_are(kernel_set, name):
    for kind in (np.float16, ml_dtypes.bfloat16):
        values = np.random.default_rng(0).standard_normal(300).astype(kind)
        assert (rounded(name, values).tobytes() == values.tobytes()) == (WIRES[name].codec.block == 0)


def test_a_count_takes_as_few_bytes_as_its_region_allows():
    """Of regions too long to be tried in full, too: a count lies below the length of its region."""
    lengths = {1: 1, 255: 1, 256: 1, 257: 2, 1 << 16: 2, (1 << 16) + 1: 4, 1 << 32: 4, (1 << 32) + 1: 8, 1 << 40: 8}
    assert count_bytes(np.array(list(lengths))).tolist() == list(lengths.values())


@pytest.mark.parametrize("name", PACKED)
def test_lengths_tell_the_number_of_entries_or_that_several_fit(name):
    """A device need not be waited for then; a wrong number would be worse than that."""
    form = WIRES[name]
    rng, told, asked = np.random.default_rng(0), 0, 0
    for width in [1, 2, 7, 64, 255, 256, 257, 1000, 4999, 70_000, 1 << 24]:
        counts = np.unique(np.concatenate([np.arange(30), width - np.arange(30), rng.integers(0, width + 1, 120)]))
        counts = counts[(counts >= 0) & (counts <= width)]
        regions = np.tile([0, width], (len(counts), 1))
        lengths = form.lengths_of(counts, regions, width, np.float32)
        for count, length, region in zip(counts, lengths, regions, strict=True):
            found = form.entries_by_length(np.array([length]), region[None], np.float32)
            assert found is None or found.tolist() == [count], (width, count)
            told += found is not None
            asked += 1
    # Of codes that share a byte it is seldom told
    assert told > asked * {"packed+int4": -1, "packed+int2": -1}.get(name, 0.7)
