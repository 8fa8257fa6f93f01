"""Bruck's allgather: everybody's rows, whatever they are made of, with their counts, in the fewest messages."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.comm.base import rounds
from sparse_mpi.comm.bruck import COUNT_BYTES, MAX_ROW_BYTES, allgather


@pytest.mark.parametrize("width", [(), (2,), (3,), (4,)], ids=["bytes", "8", "12", "16"])
def test_all_rows_from_this_rank_on(ranks, width):
    def own(rank):
        lengths = [5, 0, 1, 300, 2, 0, 7, 4]
        dtype = np.int32 if width else np.uint8
        return np.random.default_rng(rank).integers(0, 200, (lengths[rank], *width)).astype(dtype)

    def body(comm):
        rows, counts = allgather(own(comm.rank), comm)
        expected = [own((comm.rank + far) % comm.size) for far in range(comm.size)]
        assert counts.dtype == np.int64 and counts.tolist() == [len(part) for part in expected]
        assert rows.tobytes() == np.concatenate(expected).tobytes() and rows.shape[1:] == width
        return comm.traffic.messages, comm.traffic.sent, own(comm.rank).nbytes, comm.traffic.control

    results = ranks.run(body)
    levels = rounds(ranks.size)
    assert all(messages == levels and control == 0 for messages, _, _, control in results)
    overhead = sum(sent for _, sent, _, _ in results) - (ranks.size - 1) * sum(nbytes for _, _, nbytes, _ in results)
    assert 0 <= overhead <= ranks.size * (COUNT_BYTES * (ranks.size - 1) + MAX_ROW_BYTES * levels)
