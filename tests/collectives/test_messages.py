"""Messages of entries, regions of keys, and the choice of an algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi import World
from sparse_mpi.algorithms.quantiles import Pool, pooled
from sparse_mpi.collectives.choice import choose
from sparse_mpi.collectives.entries import Entries
from sparse_mpi.collectives.messages import WIDE, Format
from sparse_mpi.collectives.network import Network
from sparse_mpi.collectives.ownership import SAMPLES, counts_by_region, degrees, regions_of
from sparse_mpi_bench.analysis.keyed_volume import CASES


def entries_of(keys, shape=(), dtype=np.float32):
    keys = np.sort(np.array(keys, np.int64))
    values = np.random.default_rng(len(keys)).integers(0, 99, (len(keys), *shape)).astype(dtype)
    return Entries(keys, values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9), st.sampled_from([0, 8, 16, 33, 60]))
def test_whole_numbers_travel_as_the_shortest_type_that_holds_them(numbers, shift):
    values = np.array(numbers) >> shift
    entries, counts = Entries(np.arange(len(values)), values), np.array([len(values) - 1, 0, 1])
    regions = np.array([[0, len(values) - 2], [50, 60], [len(values) - 1, len(values) - 1]])
    form = Format(values.dtype, (), 100)
    buffer, lengths = form.pack(entries, counts, regions)
    back = form.unpack(buffer, lengths, regions)
    assert np.concatenate([part.values for part in back]).tolist() == values.tolist() and lengths[1] == 0
    width = next(w for w in (1, 2, 4, 8) if -(2 ** (8 * w - 1)) <= values.min() and values.max() < 2 ** (8 * w - 1))
    assert lengths.sum() <= width * len(values) + 2 * (len(values) + 4)
    assert all(part.values.dtype == np.int64 for part in back)


def test_packed_keys_take_few_bits_and_far_ones_eight_bytes():
    region = np.array([[0, 10**6]])
    many = entries_of(np.random.default_rng(0).choice(10**6, 10**4, replace=False))
    buffer, _ = Format(many.values.dtype, (), 10**6).pack(many, np.array([10**4]), region)
    assert len(buffer) < 10**4 * (4 + 9 / 8)
    full = entries_of(range(1000))
    assert len(Format(full.values.dtype, (), 1000).pack(full, np.array([1000]), np.array([[0, 999]]))[0]) == 4002
    buffer, _ = Format(many.values.dtype, (), WIDE).pack(many, np.array([10**4]), region)
    assert len(buffer) == 12 * 10**4 + 8


@pytest.mark.parametrize("case", CASES)
def test_whatever_the_keys_no_owner_receives_much_more_than_others(case):
    """Keys that many ranks have are no burden, for each rank combines its own first."""
    held = [CASES[case](rank, 32, 10**6, 4000) for rank in range(32)]

    def body(comm):
        mine = Entries(held[comm.rank], np.ones(len(held[comm.rank])))
        return counts_by_region(mine, regions_of(pooled(mine.keys, SAMPLES, comm), comm.size))

    received = np.sum(World(32).run(body), axis=0)
    assert received.max() <= 1.2 * received.mean()


def test_stages_of_a_butterfly_get_smaller_as_equal_keys_meet():
    def found(counts, span):
        pool = Pool(np.array(counts), np.empty(0, np.int64), np.empty(0), 0, span - 1)
        return degrees(pool, Format(np.dtype(np.float64), (), span).bytes_each)

    assert found([10] * 13, 10**6) == [2, 2, 2, 2]  # few: as few messages as can be
    assert found([10**8] * 13, 10**12) == [13]  # many: each entry is sent once
    same = found([20_000] * 64, 20_000)
    assert same == [5, 2, 2, 2, 2] and found([5], 100) == []
    assert found([20_000] * 64, 10**9) == [6, 6, 2]  # what does not meet stays as much
    assert found([0, 0, 0], 1) == [2, 2]


def chosen(counts, span, network):
    pool = Pool(np.array(counts), np.empty(0, np.int64), np.empty(0), 0, span - 1)
    return choose(pool, Format(np.dtype(np.float64), (), span), network)


def test_few_entries_are_gathered_and_many_are_split():
    slow = Network.of(1, 50)
    assert chosen([5] * 8, 10**6, slow).algorithm in ("gather", "doubling")
    many = chosen([10**6] * 8, 10**7, slow)
    assert many.algorithm == "split" and many.entries == 8 * 10**6
    assert many.expected == pytest.approx(10**7 * (1 - 0.9**8), rel=1e-6)
    same = chosen([1000] * 16, 1000, Network.of(100, 5))  # all keys there are: unions do not grow
    assert same.expected == pytest.approx(1000)
    assert str(many).startswith("split: 8,000,000 entries, about 5,695,328 distinct; split ")


def test_no_more_memory_is_taken_than_goes_with_what_comes_and_goes():
    """An algorithm by which each rank holds the entries of all is left out where these are many."""
    far = Network.of(1000, 1e6)  # a message takes a second
    few, many = chosen([1000] * 16, 10**4, far), chosen([10**6] * 16, 10**6, far)
    assert few.algorithm == "gather" and many.seconds.keys() == {"split", "butterfly"}


def test_more_entries_than_32_bits_count_are_dealt_and_chosen_for():
    pool = Pool(np.full(8, 2**33), np.arange(2**40, 2**41, 2**33), np.full(128, 2.0**29), 2**40, 2**41)
    assert regions_of(pool, 8)[:, 0].tolist() == (2**40 + np.arange(8) * 2**37).tolist()
    choice = chosen([2**33] * 8, 2**40, Network.of(100, 1))
    assert choice.entries == 2**36 and choice.algorithm == "split"
