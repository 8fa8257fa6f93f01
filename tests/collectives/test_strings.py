"""Keys that are strings: whatever they are, as a Counter of one process has them, and never by a checksum."""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from itertools import chain
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import World, collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.dictionary import Dictionary
from sparse_mpi.collectives.strings import BYTES, LONGEST, STR, StringKeys

WAYS = [*ALGORITHMS, "auto"]
LETTERS = st.sampled_from("ab\0z\x7f\x80\u00e9\ud800\udc00\udfff\ue000\uffff\U0001f600")  # lone surrogates, too
TEXT = st.text(LETTERS, max_size=6)
WORDS = TEXT.map(lambda text: text + "~")  # NumPy drops NUL at the end
RAW = st.binary(max_size=3)


def sets_of(keys):
    """What 1 to 7 ranks have; some have nothing."""
    return st.lists(st.dictionaries(keys, st.integers(-3, 2**40), max_size=12), min_size=1, max_size=7)


SETS = st.one_of(sets_of(TEXT), sets_of(RAW))


def added(sets):
    """The sum by a dict of one process, in the order of its keys."""
    total = {}
    for key, value in chain.from_iterable(one.items() for one in sets):
        total[key] = total.get(key, 0) + value
    return dict(sorted(total.items()))


def test_words_with_one_checksum_are_two_words():
    assert crc32(b"plumless") == crc32(b"buckeroo")
    mine = [Counter(["plumless"]), Counter(["buckeroo"]), Counter(["plumless"])]
    found = World(3).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm))
    assert found == [Counter(plumless=2, buckeroo=1)] * 3


@pytest.mark.usefixtures("apart")
@given(SETS, st.sampled_from(WAYS), st.sampled_from([dict, Counter]))
def test_any_strings_are_added_up(sets, way, kind):
    found = World(len(sets)).run(lambda comm: collectives.allreduce(kind(sets[comm.rank]), comm=comm, algorithm=way))
    expected = list(added(sets).items())  # zeros and negative counts, too
    assert all(type(one) is kind and list(one.items()) == expected for one in found)


@pytest.mark.usefixtures("apart")
@given(SETS, st.integers(0, 6), st.sampled_from(["keep", "drop"]))
def test_other_collectives(sets, root, zeros):
    ranks, expected = len(sets), added(sets)
    if zeros == "drop":
        expected = {key: value for key, value in expected.items() if value}

    def body(comm):
        mine = sets[comm.rank]
        parts = collectives.reduce_scatter(mine, comm=comm, zeros=zeros), collectives.allgather(mine, comm)
        return *parts, collectives.reduce(mine, root % ranks, comm=comm, zeros=zeros)

    found = World(ranks).run(body)
    assert [*chain.from_iterable(part.items() for part, _, _ in found)] == [*expected.items()]
    assert all(every == sets for _, every, _ in found)
    for rank, (_, _, reduced) in enumerate(found):
        assert (reduced is None) if rank != root % ranks else [*reduced.items()] == [*expected.items()]


@pytest.mark.parametrize("kind", ["U", ">U", "S"])
@given(st.lists(st.lists(TEXT, max_size=12), min_size=1, max_size=7), st.sampled_from([(), (2,)]))
def test_arrays_of_strings_come_back_as_such(kind, sets, shape):
    if kind == "S":
        sets = [[text.encode("utf-8", "surrogatepass") for text in one] for one in sets]
    mine = [(np.array(one, kind), np.ones((len(one), *shape), np.float32)) for one in sets]
    counts = Counter(chain.from_iterable(keys.tolist() for keys, _ in mine))  # NumPy has dropped NUL at the end
    for keys, values in World(len(sets)).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm)):
        assert keys.dtype.kind == kind[-1] and keys.tolist() == sorted(counts)
        expected = np.multiply.outer([counts[key] for key in keys.tolist()], np.ones(shape))
        assert values.dtype == np.float32 and values.shape == (len(keys), *shape) and (values == expected).all()


def test_lists_of_strings_are_keys_too_and_values_may_be_rounded():
    def body(comm):
        found = collectives.allreduce((["b", "a", "b"], np.array([1.0, 2.0, 3.0])), comm=comm, wire="packed+bf16")
        return [part.tolist() for part in found]

    assert World(3).run(body) == [[["a", "b"], [6, 12]]] * 3


def test_long_strings_and_their_bytes_are_counted():
    long = [{"x" * 10**6: 1, "": 2}, {"x" * 10**6 + "y": 3, "": 1}, {}]

    def body(comm):
        return collectives.allreduce(long[comm.rank], comm=comm), comm.traffic.sent

    found = World(3).run(body)
    assert all(result == added(long) for result, _ in found)
    assert sum(sent for _, sent in found) >= 2 * 2 * 10**6  # of two strings, to two who lack it


@pytest.mark.parametrize("prefix", ["", "x" * (LONGEST - 8)])
def test_ranges_of_strings_are_even(prefix):
    def body(comm):
        mine = [f"{prefix}{number:06}" for number in range(comm.rank, 3000, 1 + comm.rank % 3)]
        return len(Dictionary(mine, StringKeys(STR), comm)._own)

    assert max(World(7).run(body)) <= 1.3 * 3000 / 7


def test_types_that_differ_between_ranks_are_refused_by_all():
    sets = [{"a": 1}, {}, {b"a": 1}, {"b": 1}, {5: 1}]

    def body(comm):
        for call in (collectives.allreduce, collectives.reduce_scatter, collectives.reduce, collectives.allgather):
            with pytest.raises(ValueError, match="\n  ranks 0, 3: keys: str\n  rank 1: keys: none\n"):
                call(sets[comm.rank], comm=comm)
        with pytest.raises(ValueError, match="rank 2: keys: bytes\n  rank 4: keys: integers"):
            collectives.allreduce_init(list(sets[comm.rank]), comm=comm)
        return comm.traffic.sent

    assert World(5).run(body) == [0] * 5


@given(st.lists(st.tuples(st.lists(WORDS, unique=True), st.none() | st.lists(WORDS)), min_size=1, max_size=7))
def test_a_vocabulary_that_is_told_once(sets):
    def body(comm):
        keys, needed = sets[comm.rank]
        request = collectives.allreduce_init(keys, needed, comm=comm, dtype=np.int64)
        for step in range(2):
            request.start(np.arange(len(keys)) + step + comm.rank)
            found = request.wait()
            each = [{k: n + step + r for n, k in enumerate(one)} for r, (one, _) in enumerate(sets)]
            total, rows = added(each), keys if needed is None else needed
            assert found.tolist() == [total.get(key, 0) for key in rows]
            assert request.found.tolist() == [key in total for key in rows]

    World(len(sets)).run(body)


class Shout(str):
    """A str that NumPy and sorting must take for what it is."""

    def __lt__(self, other):
        return str.__gt__(self, other)


def test_strings_of_a_class_of_their_own_are_plain_in_the_result():
    mine = [{Shout("a"): 1, np.str_("c"): 2}, {"b": 3, "a": 4}]
    for found in World(2).run(lambda comm: collectives.allreduce(mine[comm.rank], comm=comm)):
        assert [*found.items()] == [("a", 5), ("b", 3), ("c", 2)] and {*map(type, found)} == {str}


@pytest.mark.parametrize("keys", [[], [""], ["", ""], ["a", "", "bc"], ["\0"], ["a\0", "\0b"], ["\ud800", "\udc00"]])
@pytest.mark.parametrize("kind", [STR, BYTES])
def test_messages_of_strings_with_and_without_nul(keys, kind):
    keys = keys if kind == STR else [key.encode("utf-8", "surrogatepass") for key in keys]
    packer = StringKeys(kind)
    message = packer.packed(keys)
    found, counts = packer.unpacked(np.tile(message, 2), np.array([len(message)] * 2))
    assert found == 2 * keys and counts.tolist() == [len(keys)] * 2


TUPLES = [("a", 1), ("b", 2)]
OBJECTS = np.fromiter(TUPLES, object, 2)
TUPLED = {
    "a dict": lambda comm: collectives.allreduce(dict.fromkeys(TUPLES, 1), comm=comm),
    "pairs": lambda comm: collectives.allreduce((TUPLES, np.ones(2)), comm=comm),
    "unlike lengths": lambda comm: collectives.allreduce(([*TUPLES, ("c",)], np.ones(3)), comm=comm),
    "an array": lambda comm: collectives.allreduce((OBJECTS, np.ones(2)), comm=comm),
    "a vocabulary": lambda comm: collectives.allreduce_init(TUPLES, comm=comm),
}


@pytest.mark.parametrize("call", TUPLED)
def test_tuples_are_refused_and_their_repr_is_taken(call):
    def body(comm):
        with pytest.raises(TypeError, match=r"^keys.* must be .*, got .*\('a', 1\); give repr\(key\).*literal_eval"):
            TUPLED[call](comm)
        sums = collectives.allreduce({repr(key): 1 for key in TUPLES[comm.rank :]}, comm=comm)
        assert {literal_eval(key): value for key, value in sums.items()} == {("a", 1): 1, ("b", 2): 2}

    World(2).run(body)


def test_bad_vocabularies():
    def body(comm):
        with pytest.raises((TypeError, ValueError), match="needed must be str as keys are, got integers"):
            collectives.allreduce_init(["a"], [1], comm=comm)
        with pytest.raises(ValueError, match="keys must be distinct, got 2 with 1 distinct"):
            collectives.allreduce_init(np.array([b"a", b"a"]), comm=comm)

    World(3).run(body)
