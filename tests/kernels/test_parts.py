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
    EqualParts(N, 4, 50),
    EqualParts(N, 12, 17),
    EqualParts(N, 3, 6720),
    EqualParts(5 * RUN, 5, 9),
    EqualParts(70, 3, 2),
]
NAMES = ["normal", "mostly-zero", "constant", "ties", "special", "tiny"]


def hints(parts, kind):
    return np.full(parts.number + 1, HINTS[kind], np.int64)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_of_each_part(passes, name, parts, dtype):
    x = flushed(inputs(dtype)[name])[: parts.size]
    there, expected = put(passes, x), array.select_parts(x, parts, hints(parts, "none"))
    for hint in HINTS:
        assert same(passes.select_parts(there, parts, put(passes, hints(parts, hint))), expected)
    assert same(there, x)


@pytest.mark.parametrize("half", [np.float16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_added_counts(passes, dtype, half):
    parts, x = PARTS[1], flushed(inputs(dtype)["normal"])
    more = inputs(np.float16)["student"].view(half) if half == np.uint16 else inputs(half)["student"]
    here, there, hint = x.copy(), put(passes, x), put(passes, hints(parts, "none"))
    for _ in range(3):  # with the thresholds of the step before
        with np.errstate(all="ignore"):
            expected = array.select_parts(here, parts, hints(parts, "none"), more)
        assert same(passes.select_parts(there, parts, hint, put(passes, more)), expected)
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
def test_parts_with_places_of_four_bytes(passes, dtype):
    """Which are too long for the shared memory of a device."""
    parts = EqualParts(140_000, 2, 300)
    x = np.random.default_rng(0).standard_normal(parts.size).astype(dtype)
    found = passes.select_parts(put(passes, x), parts, put(passes, hints(parts, "low")))
    places, values = array.select_parts(x, parts, hints(parts, "low"))
    assert same(found, (places, values)) and places.dtype == np.uint32
    sent = [np.tile(part.reshape(-1), (2, 1)) for part in (places, values)]
    found = passes.add_parts(*(put(passes, part) for part in sent), parts.width, put(passes, hints(parts, "none")))
    assert same(found, array.add_parts(*sent, parts.width, hints(parts, "none")))
    both = [put(passes, part) for part in (places, values)]
    assert same(
        passes.from_parts(parts, *both, both, None, 0),
        array.from_parts(parts, places, values, (places, values), None, 0),
    )


def messages(parts, ranks, each, dtype, name):
    """Messages of ranks to the first owner of ``each`` parts, whose results stand for those of all owners here."""
    made = []
    for rank in range(ranks):
        x = np.roll(flushed(inputs(dtype)[name])[: parts.size], 11 * rank)
        places, values = array.select_parts(x, parts, hints(parts, "none"))
        made.append((places, values))
    places, values = (np.stack([one[i].reshape(-1) for one in made]) for i in (0, 1))
    return made, places, values


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_messages_are_added_up_and_read_back(passes, name, parts, dtype):
    made, places, values = messages(parts, 3, parts.number, dtype, name)
    chosen, largest = array.add_parts(places, values, parts.width, hints(parts, "none"))
    for hint in HINTS:
        sent = put(passes, places), put(passes, values)
        found = passes.add_parts(*sent, parts.width, put(passes, hints(parts, hint)))
        assert same(one_nan(found), one_nan((chosen, largest)))
    for owed, first in ((None, 0), (np.full((1, parts.quota), 0.5, dtype), parts.number - 1)):
        there = [None if owed is None else put(passes, owed), first]
        mine = tuple(put(passes, x) for x in made[1])
        result = passes.from_parts(parts, put(passes, chosen), put(passes, largest), mine, *there)
        expected = array.from_parts(parts, chosen, largest, made[1], owed, first)
        assert same(one_nan(result), one_nan(expected))
        indices, total, sent = expected
        assert (np.diff(indices) > 0).all() and (total != 0).all()
        if owed is None and name == "normal":
            sums = sum(dense(parts, *one) for one in made)
            assert (sums[indices] == total).all() and (dense(parts, *made[1])[indices] == sent).all()


def one_nan(results):
    """Results with the same NaN everywhere: each processor makes its own."""
    return [np.where(x != x, x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x for x in map(back, results)]


def dense(parts, places, values):
    x = np.zeros(parts.number * parts.width, values.dtype)
    x[parts.indices(places)] = values
    return x


def test_a_message_that_is_no_message(passes):
    if hasattr(passes, "cupy"):
        pytest.skip("the host would have to wait for what a device finds")
    parts = PARTS[1]
    made, places, values = messages(parts, 2, 4, np.float32, "normal")
    places[1, 3] = parts.width
    with pytest.raises(MalformedMessage, match="places do not ascend"):
        passes.add_parts(places, values, parts.width, hints(parts, "none"))
    chosen = made[0][0].copy()
    chosen[2] = chosen[2, ::-1]
    with pytest.raises(MalformedMessage, match="places do not ascend"):
        passes.from_parts(parts, chosen, made[0][1], made[0], None, 0)


def test_a_device_leaves_out_what_lies_beyond_a_part(cuda):
    """It can raise nothing; and indices are those of the vector, each result has its room, whatever it is told."""
    parts = PARTS[5]
    rng = np.random.default_rng(0)
    for most in (4 * parts.width, 1 << 16, 2):
        places = np.stack([rng.permutation(most)[: parts.quota] for _ in range(parts.number)]).astype(np.uint16)
        values = np.ones(places.shape, np.float32)
        sent = put(cuda, places.reshape(1, -1)), put(cuda, values.reshape(1, -1))
        chosen, _ = cuda.add_parts(*sent, parts.width, put(cuda, hints(parts, "none")))
        assert (back(chosen) < parts.width).all()
        both = put(cuda, places), put(cuda, values)
        indices, *_ = cuda.from_parts(parts, *both, both, None, 0)
        assert len(indices) <= places.size and (back(indices) >= 0).all() and (back(indices) < parts.size).all()


def test_each_is_one_launch_and_results_by_index_are_waited_for(cuda, launches):
    parts = EqualParts(5 * RUN, 5, 9)
    x, hint = put(cuda, np.arange(parts.size, dtype=np.float32)), put(cuda, hints(parts, "none"))
    places, values = cuda.select_parts(x, parts, hint, put(cuda, np.ones(parts.size, np.float32)))
    sums = cuda.add_parts(places.reshape(1, -1), values.reshape(1, -1), parts.width, hint)
    assert launches == [(5,), (5,)] and not DEVICE.synchronised
    cuda.from_parts(parts, *sums, (places, values), None, 0)
    assert len(launches) == 3 and len(DEVICE.synchronised) == 1
