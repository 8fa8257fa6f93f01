"""Few entries come with the arguments that all ranks compare, and are not sent again."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import collectives
from sparse_mpi.collectives import inline


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_few_entries_come_with_the_arguments_and_more_do_not(monkeypatch, ranks, shape):
    monkeypatch.setattr(inline, "MOST", 16384)
    most = 63 if shape else 127  # values that a kilobyte holds beside their number

    def body(comm):
        sent = []
        # There is room for a kilobyte, for as much as before, and for a share of 128 KB or less.
        for count in (0, most, most + 1, most + 1, 4000, 4000, most):
            mine = np.arange(comm.rank, comm.rank + count), np.ones((count, *shape))
            before = comm.traffic.sent
            found = collectives.allreduce(mine, comm=comm)
            sent.append(comm.traffic.sent > before)
            holders = [sum(rank <= key < rank + count for rank in range(comm.size)) for key in found[0].tolist()]
            assert found[0].tolist() == list(range(count and comm.size - 1 + count))
            assert found[1].tolist() == np.multiply.outer(holders, np.ones(shape)).reshape(-1, *shape).tolist()
        return sent

    for sent in ranks.run(body):
        assert sent == [False, False, True, False, True, ranks.size > (2 if shape else 3), False]


@pytest.mark.ranks(2)
def test_entries_that_take_few_bits_but_much_memory_do_not(ranks):
    def body(comm):
        mine = np.arange(140_000), np.ones(140_000, np.int8)
        for _ in range(3):
            before = comm.traffic.sent
            found = collectives.allreduce(mine, comm=comm)
        return len(found[0]), comm.traffic.sent > before

    assert ranks.run(body) == [(140_000, True)] * 2


@pytest.mark.ranks(2, 3, 4)
def test_more_entries_come_where_few_keys_meet(ranks):
    def body(comm):
        sent = []
        for each in (0, 0, 1, 1, 1):  # the same keys on all ranks, or 20,000 others on each
            keys = np.arange(20_000) * 50 + comm.rank * each
            before = comm.traffic.sent
            found = collectives.allreduce((keys, np.random.default_rng(comm.rank).random(20_000)), comm=comm)
            sent.append(comm.traffic.sent > before)
        own = [np.random.default_rng(rank).random(20_000) for rank in range(comm.size)]
        assert np.array_equal(found[1].reshape(-1, comm.size), np.stack(own, axis=1))
        return sent

    # What two ranks have in common is half of what they have: as much would be sent otherwise.
    for sent in ranks.run(body):
        assert sent == [True, ranks.size > 2, True, False, False] if ranks.size > 2 else [True, *4 * [False]]


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("wide", [False, True])
def test_ranks_that_write_otherwise_are_read_where_they_stand(ranks, wide):
    """Messages of several formats and lengths in rows that are as long as the longest."""

    def body(comm):
        far = 2**60 if wide and comm.rank % 2 else 1
        mine = np.arange(3 + comm.rank) * far, (np.arange(3 + comm.rank) + 1) << 8 * (comm.rank % 3)
        return collectives.allgather(mine, comm=comm)

    for found in ranks.run(body):
        for rank, (keys, values) in enumerate(found):
            assert keys.tolist() == [i * (2**60 if wide and rank % 2 else 1) for i in range(3 + rank)]
            assert values.tolist() == [(i + 1) << 8 * (rank % 3) for i in range(3 + rank)]
