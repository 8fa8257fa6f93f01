"""Kernels of votes, and sums of rows: the same bits from every set."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.kernels import array

from .on_cuda import N, flushed, inputs, put

pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
FLOATS = [np.float32, np.float64]
RANKS = [1, 3, 8, 97]
ENTRIES = [0, 1, 300]


@pytest.fixture
def sets(cuda):
    """The other sets than that of whole-array functions, and how arrays go there and come back."""
    cpu = pytest.importorskip("sparse_mpi.kernels.cpu", reason="the compiled kernels need Numba")
    return [(cpu, np.array, np.array), (cuda, lambda x: put(cuda, x), lambda x: x.get())]


def assert_alike(sets, name, *arguments):
    """Assert that a kernel of each set returns the same bits in the same types."""
    result = getattr(array, name)(*arguments)
    expected = result if isinstance(result, tuple) else (result,)
    for passes, there, back in sets:
        result = getattr(passes, name)(*(there(a) if isinstance(a, np.ndarray) else a for a in arguments))
        for a, b in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
            assert back(a).dtype == b.dtype and back(a).tobytes() == b.tobytes(), passes.__name__


def made(name, dtype=np.float32):
    """Return one of the inputs, but subnormal numbers only where the processor knows them."""
    return flushed(inputs(dtype)[name])


def some(entries, size=N, index=np.int32):
    return np.sort(np.random.default_rng(entries).choice(size, entries, replace=False)).astype(index)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dealing_indices_out_and_taking_them_back(sets, ranks, entries, dtype):
    indices, values = some(entries), np.random.default_rng(0).standard_normal(entries).astype(dtype)
    assert_alike(sets, "deal", indices, values, N, ranks)
    numbers = array.deal(indices, values, N, ranks)[0]
    assert_alike(sets, "undeal", numbers, N, ranks)
    np.testing.assert_array_equal(np.sort(array.undeal(numbers, N, ranks)), indices)


def test_numbers_of_more_bits_than_indices(sets):
    """The last round may have more places than there are indices left."""
    size = 2**31 - 1
    indices = np.array([0, 5, size - 2, size - 1], np.int32)
    assert array.deal(indices, indices, size, 1000)[0].dtype == np.int64
    assert_alike(sets, "deal", indices, indices.astype(np.float32), size, 1000)
    assert_alike(sets, "undeal", array.deal(indices, indices, size, 1000)[0], size, 1000)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("name", ["normal", "special", "tiny", "mostly-zero"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_changes(sets, name, entries, dtype):
    x, indices = made(name, dtype), some(entries)
    with np.errstate(over="ignore"):
        values = (3 * inputs(dtype)["special"])[:entries]
    assert_alike(sets, "changes", x, indices, np.where(np.isnan(values), np.inf, values).astype(dtype))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("size", [N, 2**28])
@pytest.mark.parametrize("name", ["normal", "student", "special", "tiny", "constant"])
def test_ballots_are_coded_and_decoded_alike(sets, name, size, entries):
    values = made(name)
    values = values[values != 0][:entries]
    indices = some(len(values))
    assert_alike(sets, "to_ballots", values, indices, size)
    coded, lows, rounded = array.to_ballots(values, indices, size)
    assert_alike(sets, "from_ballots", coded, lows, size)
    np.testing.assert_array_equal(array.from_ballots(coded, lows, size)[0], indices)
    assert array.from_ballots(coded, lows, size)[1].tobytes() == rounded.tobytes()


@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (3, 5000), (9, 1), (4, 0)])
@pytest.mark.parametrize("name", ["normal", "tiny"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_added_in_their_order(sets, name, shape, dtype):
    matrix = made(name, dtype)[: shape[0] * shape[1]].reshape(shape)
    assert_alike(sets, "add_rows", matrix)
    expected = np.zeros(shape[1], dtype) - dtype(0)
    for row in matrix:
        expected = expected + row
    np.testing.assert_array_equal(array.add_rows(matrix), expected)


def test_launches(cuda, launches):
    x, indices = put(cuda, made("normal")), put(cuda, some(300))
    deltas, _ = cuda.changes(x, indices, x[:300])
    numbers, dealt = cuda.deal(indices, deltas, N, 3)
    coded, lows, _ = cuda.to_ballots(dealt, numbers, N + 1)
    cuda.from_ballots(coded, lows, N + 1)
    cuda.undeal(numbers, N, 3)
    assert len(launches) == 6  # two of them code ballots


@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_that_a_mask_chooses(sets, dtype, share):
    indices, values = some(300), made("special", dtype)[:300]
    assert_alike(sets, "compress", indices, values, np.random.default_rng(0).random(300) < share)
