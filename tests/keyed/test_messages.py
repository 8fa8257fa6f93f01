"""Messages of entries, regions of keys, and the choice of an algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparse_mpi import World
from sparse_mpi.comm.quantiles import Pool
from sparse_mpi.costs.model import Network
from sparse_mpi.keyed.choice import choose
from sparse_mpi.keyed.entries import Entries
from sparse_mpi.keyed.messages import WIDE, Format
from sparse_mpi.keyed.ownership import dealt, pooled, regions_of

EDGES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
ANY_KEY = st.one_of(st.integers(-40, 40), st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
SETS = st.lists(st.lists(ANY_KEY, max_size=12, unique=True), min_size=1, max_size=7)


def entries_of(keys, shape=(), dtype=np.float32):
    keys = np.sort(np.array(keys, np.int64))
    values = np.random.default_rng(len(keys)).integers(0, 99, (len(keys), *shape)).astype(dtype)
    return Entries(keys, values)


@given(SETS, st.sampled_from([(), (3,), (2, 2)]), st.sampled_from([np.bool_, np.int16, np.float32, np.complex128]))
@example([[-(2**63), 2**63 - 1], []], (), np.float32)
@example([[2**63 - 1, 2**63 - 3]], (), np.float32)
def test_entries_arrive_as_they_were_in_the_regions_of_their_owners(sets, shape, dtype):
    def body(comm):
        mine = entries_of(sets[comm.rank], shape, dtype)
        pool = pooled(mine, comm)
        regions, form = regions_of(pool, comm.size), Format(mine.values.dtype, shape, pool.span)
        counts = dealt(mine, regions)
        buffer, lengths = form.pack(mine, counts, regions)
        assert counts.sum() == len(mine.keys) and lengths.sum() == len(buffer)
        assert ((lengths == 0) == (counts == 0)).all()
        found = form.unpack(buffer, lengths, regions)
        for (low, high), part in zip(regions.tolist(), found, strict=True):
            assert all(low <= key <= high for key in part.keys.tolist())
        assert np.concatenate([part.keys for part in found]).tolist() == mine.keys.tolist()
        assert np.concatenate([part.values for part in found]).tobytes() == mine.values.tobytes()
        return regions.tolist()

    regions = World(len(sets)).run(body)
    assert all(one == regions[0] for one in regions)


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


@pytest.mark.parametrize("ranks", [8, 64])
def test_vocabulary_shards_are_dealt_out_evenly(ranks):
    """Each rank has a range of keys of its own, and some more than others: the mean of quantiles would be far off."""
    rng = np.random.default_rng(0)

    def keys(rank):
        return np.unique(rng.integers(1000 * rank, 1000 * (rank + 1), 300 + 10 * rank))

    held = [keys(rank) for rank in range(ranks)]

    def body(comm):
        mine = Entries(held[comm.rank], np.ones(len(held[comm.rank])))
        return dealt(mine, regions_of(pooled(mine, comm), comm.size))

    received = np.sum(World(ranks).run(body), axis=0)
    assert received.max() <= 1.3 * received.mean()


def test_one_key_that_all_have_is_one_rank_s():
    def body(comm):
        mine = entries_of([5])
        pool = pooled(mine, comm)
        return dealt(mine, regions_of(pool, comm.size)).tolist(), pool.span

    assert {tuple(map(str, found)) for found in World(5).run(body)} == {("[0, 0, 0, 0, 1]", "1")}


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
