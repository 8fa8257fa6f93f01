"""Keys as far apart as they can be, of any byte order and stride, and results of nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseVector, collectives
from sparse_mpi.collectives.messages import WIDE


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [2, 300])
@pytest.mark.parametrize("distance", [WIDE - 2, WIDE - 1, WIDE, 2**63 - 1])
def test_ranks_that_span_as_many_keys_as_are_packed_and_one_more(ranks, distance, count):
    """Such as the 28-mers of one rank: those who write and those who read agree whether keys are packed."""

    def body(comm):
        keys = np.append(np.arange(count - 1), distance)
        found = [
            collectives.allreduce((keys, np.ones(count, np.int64)), comm=comm),
            collectives.reduce((keys, np.ones(count, np.int64)), comm=comm),
            collectives.allgather((keys, np.full(count, comm.size)), comm=comm)[-1],
        ]
        for one in found:
            assert one is None or (one[0].tolist() == keys.tolist() and set(one[1].tolist()) == {comm.size})

    ranks.run(body)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [3, 70_000])
def test_keys_far_apart_may_stand_apart_in_memory(ranks, count):
    """On one rank only: what is contiguous and what is not must not differ where messages are written."""

    def body(comm):
        keys = np.repeat(np.append(np.arange(count - 1), 2**60), 2)
        keys = keys[::2] if comm.rank == 0 else keys[::2].copy()
        values = np.ones((count, 2), np.float32)[:, 0]
        found = collectives.allreduce((keys, values), comm=comm)
        assert found[0].tolist() == keys.tolist() and set(found[1].tolist()) == {comm.size}
        vector = collectives.allreduce(SparseVector(keys, values, 2**61), comm=comm)
        assert vector.indices.tolist() == keys.tolist()

    ranks.run(body)


@pytest.mark.ranks(1, 2, 3)
def test_a_result_of_nothing_may_drop_its_zeros(ranks):
    def body(comm):
        nothing = np.empty(0, np.int64), np.empty(0)
        for given in (nothing, (nothing[0], np.empty((0, 3)))):
            assert collectives.allreduce(given, comm=comm, zeros="drop")[0].size == 0
            assert (found := collectives.reduce(given, comm=comm, zeros="drop")) is None or found[0].size == 0
        assert collectives.allreduce({}, comm=comm, zeros="drop") == {}
        own = collectives.reduce_scatter((np.array([7]), np.array([1.5])), comm=comm, zeros="drop")
        return own[0].tolist()

    assert sorted(sum(ranks.run(body), [])) == [7]


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", [">u8", "<u8", ">i8", ">i4", "<i2"])
def test_keys_of_any_byte_order_ascend(ranks, kind):
    most = np.iinfo(kind).max

    def body(comm):
        keys, values = collectives.allreduce((np.array([most, 0, 5], kind), np.array([3.0, 1.0, 2.0])), comm=comm)
        assert keys.dtype == np.dtype(kind)
        return keys.tolist(), values.tolist()

    for keys, values in ranks.run(body):
        assert keys == [0, 5, int(most)] and values == [float(ranks.size * n) for n in (1, 2, 3)]


def test_a_persistent_call_refuses_large_keys_of_any_byte_order():
    with pytest.raises(TypeError, match="keys must be a vector of integers below 2"):
        collectives.allreduce_init(np.array([0, 2**63 + 5], ">u8"))
    with pytest.raises(TypeError, match="needed must be a vector of integers below 2"):
        collectives.allreduce_init([1], np.array([2**63], np.uint64))
