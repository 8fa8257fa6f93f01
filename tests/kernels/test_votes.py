"""Kernels of votes, and sums of rows: the same bits from every set."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import BALLOTS, LONG, MESSAGE, SCALED

from ..fakes.fake_device import DEVICE
from .on_cuda import N, flushed, inputs, put, same

pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
FLOATS = [np.float32, np.float64]
RANKS = [1, 3, 8, 97]
ENTRIES = [0, 1, 300]


def assert_alike(passes, name, *arguments):
    there = [put(passes, a) if isinstance(a, np.ndarray) and a.dtype != MESSAGE else a for a in arguments]
    both = getattr(passes, name)(*there), getattr(array, name)(*arguments)
    assert same(*(result if isinstance(result, tuple) else (result,) for result in both))


def made(name, dtype=np.float32):
    """Return one of the inputs, but subnormal numbers only where the processor knows them."""
    return flushed(inputs(dtype)[name])


def some(entries, size=N, index=np.int32):
    return np.sort(np.random.default_rng(entries).choice(size, entries, replace=False)).astype(index)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "special", "tiny", "mostly-zero"])
def test_votes_are_the_changes_of_most_worth(passes, name, dtype, ranks, entries):
    """By the root of change times value, as many of each rank as its quota."""
    x, indices, values = made(name, dtype), some(entries), made("special", dtype)[:entries]
    values = np.where(np.isnan(values), np.inf, values).astype(dtype)
    width, few = -(-N // ranks), np.arange(ranks) % 4
    for quotas in (np.full(ranks, width), few, (np.arange(ranks) == 1) * (width // 2)):
        there = [put(passes, a) for a in (x, indices, values)]
        assert same(passes.cast_votes(*there, quotas), array.cast_votes(x, indices, values, quotas))
        own, more, sent = ranks // 2, min(3, width), int(quotas.sum())
        found = array.cast_votes(x, indices, values, quotas, own, more)
        alone = array.cast_votes(x, indices, values, more * (np.arange(ranks) == own))
        others = array.cast_votes(x, indices, values, quotas * (np.arange(ranks) != own))
        voted, of_others = np.isin(alone[0], found[0][sent:]), found[0][:sent] // width != own
        assert same([a[sent:] for a in found], [a[voted] for a in alone]) and not alone[1][~voted].any()
        assert same([a[:sent][of_others] for a in found], others) and not found[1][:sent][~of_others].any()
        if hasattr(passes, "cupy"):
            found = [np.append(a[:sent], b) for a, b in zip(found, alone, strict=True)]
        assert same(passes.cast_votes(*there, quotas, own, more), found)
    whole, of_whole = array.cast_votes(x, indices, values, np.full(ranks, width))
    assert whole.tolist() == list(range(ranks * width))  # there is room for all numbers
    every = np.sort(whole[np.isin(array.undeal(whole, N, ranks), indices)])
    of_every, there = of_whole[every], np.histogram(every, np.arange(ranks + 1) * width)[0]
    assert_alike(passes, "undeal", every, N, ranks)
    back = array.undeal(every, N, ranks)
    np.testing.assert_array_equal(np.sort(back), indices)
    np.testing.assert_array_equal(of_every, values[indices.searchsorted(back)] - x[back])
    added, expected = put(passes, x.copy()), x.copy()
    passes.add_dealt(added, put(passes, every), put(passes, of_every), N, ranks)
    array.add_dealt(expected, every, of_every, N, ranks)
    assert added.tobytes() == expected.tobytes()
    worth = magnitude_bits(np.sqrt(np.abs(of_every)) * np.sqrt(np.abs(values[indices.searchsorted(back)])))
    numbers, deltas = array.cast_votes(x, indices, values, few)
    for rank, (quota, end) in enumerate(zip(few.tolist(), there.cumsum().tolist(), strict=True)):
        own = slice(end - there[rank], end)
        largest = np.sort((-worth[own].astype(np.int64)).argsort(kind="stable")[:quota])
        voted = every[own][largest]
        others = np.setdiff1d(np.arange(rank * width, (rank + 1) * width), voted)[: quota - len(voted)]
        np.testing.assert_array_equal(numbers[:quota], np.sort(np.append(voted, others)))
        np.testing.assert_array_equal(deltas[:quota][np.isin(numbers[:quota], others)], 0)
        numbers, deltas = numbers[quota:], deltas[quota:]


def test_numbers_of_more_bits_than_indices(passes):
    size, indices = 2**31 - 1, np.array([0, 5, 2**31 - 3, 2**31 - 2], np.int32)
    x = np.broadcast_to(np.float32(0), size)
    numbers, deltas = array.cast_votes(x, indices, np.ones(4, np.float32), np.full(1000, 1))
    assert numbers.dtype == np.int64
    np.testing.assert_array_equal(np.sort(array.undeal(numbers[deltas != 0], size, 1000)), indices)
    assert_alike(passes, "undeal", numbers, size, 1000)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("size", [N, 2**28])
@pytest.mark.parametrize("name", ["normal", "student", "special", "tiny", "constant"])
def test_ballots_are_coded_and_decoded_alike(passes, name, size, entries):
    values = made(name)[:entries]
    indices = some(len(values))
    assert_alike(passes, "to_ballots", values, indices, size)
    coded, lows, rounded = array.to_ballots(values, indices, size)
    counts = np.array([len(coded) // 3, 0, len(coded) - len(coded) // 3])
    regions, none = np.tile([0, BALLOTS * size], (3, 1)), np.zeros(3, np.int64)
    messages = array.lay_out(counts, regions, none, none, -(-counts // SCALED))
    assert_alike(passes, "from_ballots", messages, coded, lows, size)
    there, values = array.from_ballots(messages, coded, lows, size)
    np.testing.assert_array_equal(there, indices)
    assert values.tobytes() == rounded.tobytes()


@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (3, 5000), (9, 1), (4, 0)])
@pytest.mark.parametrize("name", ["normal", "tiny"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_added_in_their_order(passes, name, shape, dtype):
    matrix = made(name, dtype)[: shape[0] * shape[1]].reshape(shape)
    assert_alike(passes, "add_rows", matrix)
    expected = np.zeros(shape[1], dtype) - dtype(0)
    for row in matrix:
        expected = expected + row
    np.testing.assert_array_equal(array.add_rows(matrix), expected)


@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_that_a_mask_chooses(passes, dtype, share):
    indices, values = some(300), made("special", dtype)[:300]
    chosen = np.random.default_rng(0).random(300) < share
    assert_alike(passes, "compress", indices, values, chosen)
    assert_alike(passes, "compress", indices, values, chosen, int(chosen.sum()))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("entries", ENTRIES)
def test_counts_of_regions(passes, entries, ranks):
    boundaries = np.sort(np.random.default_rng(0).integers(0, N + 1, ranks + 1))
    for kernels in (array, passes):
        counts = np.asarray(kernels.split_counts(put(kernels, some(entries)), boundaries))
        assert counts.dtype == np.int64
        np.testing.assert_array_equal(counts, np.histogram(some(entries), boundaries)[0] if entries else 0)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, np.int32), (np.float64, np.int32), (np.float16, np.int16)])
def test_pairs_as_rows_and_back(passes, dtype, unit, index, entries):
    indices, values = some(entries, index=index), np.arange(entries).astype(dtype)
    pairs = array.to_pairs(indices, values, np.dtype(unit))
    assert pairs.tobytes() == b"".join(a.tobytes() + b.tobytes() for a, b in zip(indices, values, strict=True))
    assert_alike(passes, "to_pairs", indices, values, np.dtype(unit))
    assert_alike(passes, "from_pairs", pairs, np.dtype(index), np.dtype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_of_several_ranks_are_added_in_their_order(passes, dtype):
    """Of 1, 1e9 and -1e9 the sum depends on it, and on what they are added to."""
    indices = np.concatenate([some(300), some(300), some(200), some(1)])
    values = np.random.default_rng(1).choice([1, 1e9, -1e9, 0.5], len(indices)).astype(dtype)
    expected = np.full(N, 3, dtype)
    for index, value in zip(indices, values, strict=True):
        expected[index] += value
    for kernels in (array, passes):
        x = put(kernels, np.full(N, 3, dtype))
        kernels.add_in_order(x, put(kernels, indices), put(kernels, values))
        assert x.tobytes() == expected.tobytes()
        x = put(kernels, np.full(N, 3, dtype))
        kernels.add_in_order(x, put(kernels, indices + 7), put(kernels, values), 7)
        assert x.tobytes() == expected.tobytes()
        x = put(kernels, np.full(N, 3, dtype))
        kernels.add_in_order(x, put(kernels, indices), put(kernels, values), 0, np.array([300, 300, 0, 200, 1]))
        assert x.tobytes() == expected.tobytes()


def test_a_number_is_told_after_its_kernel(cuda):
    """And not before: until then the memory of the host has what it had."""
    if not hasattr(cuda.cupy.cuda.get_current_stream(), "log"):
        pytest.skip("the pretended device holds back what a kernel writes to the host")
    waits = DEVICE.synchronised
    number, waited = cuda.top_k(put(cuda, np.array([3, -2, 5], np.float32)), 3)[2], len(waits)
    assert int(number) == int(np.float32(2).view(np.int32)) and len(waits) == waited + 1
    assert int(number) == int(np.float32(2).view(np.int32)) and len(waits) == waited + 1  # it is known
    number = cuda.top_k(put(cuda, np.ones(3, np.float32)), 2)[2]
    cuda.cupy.cuda.get_current_stream().synchronize()
    waited = len(waits)
    assert int(number) == int(np.float32(1).view(np.int32)) and len(waits) == waited  # it has been waited for


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "ties", "special"])
def test_rows_of_many_lengths_are_selected_from_in_two_launches(cuda, launches, dtype, name):
    """As matrix by matrix: rows of one entry, whole ones, and long ones."""
    x, rows, at = made(name, dtype), [], 0
    for length, quota in [(1, 1), (5, 2), (300, 300), (LONG + 7, 40), (700, 1), (33, 33), (LONG, LONG)]:
        rows.append((at, length, quota, sum(row[2] for row in rows)))
        at += length
    table = np.array(rows)
    tables, entries = (table[table[:, 1] < LONG], table[table[:, 1] >= LONG]), int(table[:, 2].sum())
    indices, values = cuda.select_rows(put(cuda, x), tables, entries)
    assert len(launches) == 2
    for start, length, quota, to in rows:
        columns, found = array.top_k_rows(x[None, start : start + length], quota)
        assert indices.get()[to : to + quota].tolist() == (start + columns[0]).tolist()
        assert values.get()[to : to + quota].tobytes() == found.tobytes()
