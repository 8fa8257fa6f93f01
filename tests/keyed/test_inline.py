"""Few entries come with the arguments that all ranks compare, and are not sent again."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import keyed
from sparse_mpi.keyed import inline


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_few_entries_come_with_the_arguments_and_more_do_not(monkeypatch, ranks, shape):
    monkeypatch.setattr(inline, "MOST", 16384)

    def body(comm):
        sent = []
        # Of 8 bytes a key and 8 or 16 a value, there is room for 64 or 42, for as many as before, and for a third of
        # 128 KB or less.
        for count in (0, 42, 43, 43, 65, 65, 2000, 2000, 30):
            mine = np.arange(comm.rank, comm.rank + count), np.ones((count, *shape))
            before = comm.traffic.sent
            found = keyed.allreduce(mine, comm=comm)
            sent.append(comm.traffic.sent > before)
            holders = [sum(rank <= key < rank + count for rank in range(comm.size)) for key in found[0].tolist()]
            assert found[0].tolist() == list(range(count and comm.size - 1 + count))
            assert found[1].tolist() == np.multiply.outer(holders, np.ones(shape)).reshape(-1, *shape).tolist()
        return sent

    for sent in ranks.run(body):
        if shape:
            assert sent == [False, False, True, False, False, False, True, ranks.size > 2, False]
        else:
            assert sent == [False, False, False, False, True, False, True, ranks.size > 3, False]
