"""EqualParts with quotas: every set of kernels against whole-array functions, and these against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.kernels.parts import RUN, EqualParts

from .on_cuda import N, flushed, inputs, put, same

FLOATS = [np.float32, np.float64]
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
    return np.full(parts.number + 1, {"none": 0, "low": 1 << 29, "high": 1 << 30}[kind], np.int64)


@pytest.mark.parametrize("hint", ["none", "low", "high"])
@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_of_each_part(passes, name, parts, dtype, hint):
    x = flushed(inputs(dtype)[name])[: parts.size]
    there = put(passes, x)
    found = passes.select_parts(there, parts, put(passes, hints(parts, hint)))
    assert same(found, array.select_parts(x, parts, hints(parts, hint)))
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
    """Each round begins one part later: neighbouring runs, and runs of one column, lie in different parts."""
    parts = EqualParts(12 * RUN, 3, 1)
    owner = np.repeat(np.arange(3), parts.width).reshape(3, -1)
    dealt = np.empty(parts.size, int)
    every = np.tile(np.arange(parts.width), (3, 1))
    dealt[parts.indices(every)] = owner
    assert dealt[::RUN].tolist() == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    x = np.arange(parts.size, dtype=np.float32)
    assert (parts.rows(x) == parts.indices(every)).all()


def messages(parts, ranks, each, dtype, name):
    """What ranks send to the first owner of ``each`` parts, whose results are those of all owners here."""
    made = []
    for rank in range(ranks):
        x = np.roll(flushed(inputs(dtype)[name])[: parts.size], 11 * rank)
        places, values = array.select_parts(x, parts, hints(parts, "none"))
        made.append((places, values))
    places, values = (np.stack([one[i].reshape(-1) for one in made]) for i in (0, 1))
    return made, places, values


@pytest.mark.parametrize("hint", ["none", "low", "high"])
@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_messages_are_added_up_and_read_back(passes, name, parts, dtype, hint):
    made, places, values = messages(parts, 3, parts.number, dtype, name)
    found = passes.add_parts(put(passes, places), put(passes, values), parts.width, put(passes, hints(parts, hint)))
    chosen, largest = array.add_parts(places, values, parts.width, hints(parts, hint))
    assert same(found, (chosen, largest))
    for owed, first in ((None, 0), (np.full((1, parts.quota), 0.5, dtype), parts.number - 1)):
        there = [None if owed is None else put(passes, owed), first]
        mine = tuple(put(passes, x) for x in made[1])
        result = passes.from_parts(parts, put(passes, chosen), put(passes, largest), mine, *there)
        expected = array.from_parts(parts, chosen, largest, made[1], owed, first)
        assert same(result, expected)
        indices, total, sent = expected
        assert (np.diff(indices) > 0).all() and (total != 0).all()
        if owed is None and name == "normal":
            sums = sum(dense(parts, *one) for one in made)
            assert (sums[indices] == total).all() and (dense(parts, *made[1])[indices] == sent).all()


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
