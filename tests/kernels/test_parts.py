"""Parts with quotas: every set of kernels against whole-array functions, and these against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.kernels.parts import RUN, EqualParts

from ..fakes.fake_device import DEVICE
from .on_cuda import N, back, flushed, inputs, put, same

HINTS = {"none": 0, "low": 1 << 29, "high": 1 << 30}  # thresholds of the step before
FLOATS = [np.float32, pytest.param(np.float64, marks=pytest.mark.full("compiled anew"))]
PARTS = [
    EqualParts(N, 1, 400),
    EqualParts(N, 4, 50, 2),
    EqualParts(N, 12, 17, 4),
    EqualParts(N, 3, 6720, 3),
    EqualParts(5 * RUN, 5, 9, 5),
    EqualParts(70, 3, 2),
    EqualParts(N, 6, 3300, 2),
]
NAMES = ["normal", "mostly-zero", "constant", "ties", "special", "tiny"]


def hints(parts, kind):
    return np.full(parts.number + 1, HINTS[kind], np.int64)


def same_messages(parts, dtype, found, expected):
    """Of places and values: what fills a message up says nothing."""
    opened = (parts.opened(np.atleast_2d(back(rows)), np.dtype(dtype)) for rows in (found, expected))
    return all(map(same, *(map(one_nan, ([part] for part in pair)) for pair in opened)))


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_of_each_part(passes, name, parts, dtype):
    x = flushed(inputs(dtype)[name])[: parts.size]
    there, expected = put(passes, x), array.select_parts(x, parts, hints(parts, "none"))
    for hint in HINTS:
        found = passes.select_parts(there, parts, put(passes, hints(parts, hint)))
        assert same_messages(parts, dtype, found, expected)
    assert same(there, x)


@pytest.mark.parametrize("many_threads", [1, 3], indirect=True)
@pytest.mark.parametrize("half", [np.float16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_added_counts(passes, dtype, half, many_threads):
    parts, x = PARTS[1], flushed(inputs(dtype)["normal"])
    more = inputs(np.float16)["student"].view(half) if half == np.uint16 else inputs(half)["student"]
    here, there, hint = x.copy(), put(passes, x), put(passes, hints(parts, "none"))
    for _ in range(3):  # with the thresholds of the step before
        with np.errstate(all="ignore"):
            expected = array.select_parts(here, parts, hints(parts, "none"), more)
        found = passes.select_parts(there, parts, hint, put(passes, more))
        assert same_messages(parts, dtype, found, expected)
        assert same(there, here)


def test_parts_are_dealt_in_turns():
    """Each round begins with a part of its own: neighbouring runs, and runs of one column, lie in different parts."""
    parts = EqualParts(12 * RUN, 3, 1)
    owner = np.repeat(np.arange(3), parts.width).reshape(3, -1)
    dealt = np.empty(parts.size, int)
    every = np.tile(np.arange(parts.width), (3, 1))
    dealt[parts.indices(every)] = owner
    assert dealt[::RUN].tolist() == [0, 1, 2, 1, 2, 0, 0, 1, 2, 2, 0, 1]
    x = np.arange(parts.size, dtype=np.float32)
    assert (parts.rows(x) == parts.indices(every)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_message_has_all_values_then_all_places(dtype):
    parts, real = PARTS[2], np.dtype(dtype)
    places, values = np.arange(2 * parts.entries).reshape(2, -1), np.ones((2, parts.entries), dtype)
    rows = parts.written(places, values)
    assert rows.shape == (2, parts.length(real)) and parts.length(real) % real.itemsize == 0
    assert rows[0, : real.itemsize].tobytes() == dtype(1).tobytes()
    first = parts.entries * real.itemsize
    assert rows[1, first : first + 2].tobytes() == np.uint16(parts.entries).tobytes()
    assert all(same(*pair) for pair in zip(parts.opened(rows, real), (places.astype(np.uint16), values), strict=True))


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_how_many_places_lie_within_the_vector(parts):
    x = np.ones(parts.size, np.float32)
    messages = array.select_parts(x, parts, hints(parts, "none"))
    assert parts.within == np.count_nonzero(parts.opened(messages, x.dtype)[1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_with_places_of_four_bytes(passes, dtype):
    """Which are too long for the shared memory of a device."""
    parts = EqualParts(140_000, 2, 300, 2)
    x = np.random.default_rng(0).standard_normal(parts.size).astype(dtype)
    assert parts.place == np.uint32
    assert_one_step(passes, parts, [x, x[::-1].copy()], dtype, "low")


def assert_one_step(passes, parts, vectors, dtype, hint="none", owed=None):
    """Every function against the whole-array ones, for messages of ranks with these vectors; return the result."""
    real, made = np.dtype(dtype), [array.select_parts(x, parts, hints(parts, "none")) for x in vectors]
    for x, rows in zip(vectors, made, strict=True):
        found = passes.select_parts(put(passes, x), parts, put(passes, hints(parts, hint)))
        assert same_messages(parts, dtype, found, rows)
    sums, thresholds = [], hints(parts, hint)[: parts.each + 1]
    for owner in range(parts.ranks):
        came = np.stack([rows[owner] for rows in made])
        sums.append(array.add_parts(came, parts, thresholds, real))
        found = passes.add_parts(put(passes, came), parts, put(passes, thresholds), real)
        assert same_messages(parts, dtype, found, sums[-1])
    given = np.stack(sums), parts, made[-1]
    there = put(passes, given[0]), parts, put(passes, given[2])
    expected = array.from_parts(*given, owed, parts.ranks - 1, real)
    found = passes.from_parts(*there, None if owed is None else put(passes, owed), parts.ranks - 1, real)
    if hasattr(passes, "cupy"):
        assert len(found[0]) == parts.within and not (back(found[2])[back(found[1]) == 0]).any()
        found = cut(found)
    assert same(one_nan(found), one_nan(expected))
    return made, expected


def cut(result):
    """Without zeros, which a device keeps."""
    indices, total, sent = map(back, result)
    assert (np.diff(indices) > 0).all()
    return indices[total != 0], total[total != 0], sent[total != 0]


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_messages_are_added_up_and_read_back(passes, name, parts, dtype):
    x = flushed(inputs(dtype)[name])[: parts.size]
    vectors = [np.roll(x, 11 * rank) for rank in range(parts.ranks)]
    for hint in HINTS:
        made, (indices, total, sent) = assert_one_step(passes, parts, vectors, dtype, hint)
    assert (np.diff(indices) > 0).all() and (total != 0).all()
    if name == "normal":
        chosen = [dense(parts, rows, dtype) for rows in made]
        assert (sum(chosen)[indices] == total).all() and (chosen[-1][indices] == sent).all()
    assert_one_step(passes, parts, vectors, dtype, "none", np.full(parts.entries, 0.5, dtype))


def one_nan(results):
    """Results with the same NaN everywhere: each processor makes its own."""
    return [np.where(x != x, x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x for x in map(back, results)]


def dense(parts, rows, dtype):
    places, values = (part.reshape(parts.number, -1) for part in parts.opened(rows, np.dtype(dtype)))
    x = np.zeros(parts.number * parts.width, dtype)
    x[parts.indices(places)] = values
    return x


FLOAT = np.dtype(np.float32)


def test_a_message_that_is_no_message(passes):
    if hasattr(passes, "cupy"):
        pytest.skip("the host would have to wait for what a device finds")
    parts = PARTS[1]
    messages = array.select_parts(flushed(inputs(np.float32)["normal"]), parts, hints(parts, "none"))
    places, values = parts.opened(messages, FLOAT)
    for last in (parts.width, 0):
        wrong = places.copy()
        wrong[1, -1] = last
        malformed = parts.written(wrong, values)
        with pytest.raises(MalformedMessage, match="places do not ascend"):
            passes.add_parts(malformed, parts, hints(parts, "none")[: parts.each + 1], FLOAT)
        with pytest.raises(MalformedMessage, match="places do not ascend"):
            passes.from_parts(malformed, parts, messages, None, 0, FLOAT)
    # A place within its part, and beyond the vector
    parts = EqualParts(70, 3, 1)
    rows = parts.written(np.full((1, 3), 63), np.ones((1, 3), np.float32))
    with pytest.raises(MalformedMessage, match="beyond its part"):
        passes.from_parts(rows, parts, rows, None, 0, FLOAT)


def test_a_device_leaves_out_what_lies_beyond_a_part(cuda):
    """It can raise nothing; and indices are those of the vector, each result has its room, whatever it is told."""
    parts = PARTS[5]
    rng = np.random.default_rng(0)
    for most in (4 * parts.width, 1 << 16, 2):
        places = np.stack([rng.permutation(most)[: parts.quota] for _ in range(parts.number)]).astype(np.uint16)
        rows = put(cuda, parts.written(places.reshape(1, -1), np.ones((1, parts.entries), np.float32)))
        chosen = parts.opened(back(cuda.add_parts(rows, parts, put(cuda, hints(parts, "none")), FLOAT))[None], FLOAT)[0]
        assert (chosen < parts.width).all()
        indices, total, _ = map(back, cuda.from_parts(rows, parts, rows, None, 0, FLOAT))
        assert len(indices) == parts.within and (indices >= 0).all() and (indices < parts.size).all()
        assert (total == 1).all()


def test_each_is_one_launch_and_none_is_waited_for(cuda, launches):
    parts = EqualParts(5 * RUN, 5, 9)
    x, hint = put(cuda, np.arange(parts.size, dtype=np.float32)), put(cuda, hints(parts, "none"))
    rows = cuda.select_parts(x, parts, hint, put(cuda, np.ones(parts.size, np.float32)))
    sums = cuda.add_parts(rows, parts, hint, FLOAT)
    cuda.from_parts(sums.reshape(1, -1), parts, rows, None, 0, FLOAT)
    assert launches == [(5,), (5,), (1,)] and not DEVICE.synchronised
