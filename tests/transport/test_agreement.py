"""What ranks tell each other before and beside their work."""

from __future__ import annotations

import pytest

from sparse_mpi.comm.consistency import tell


@pytest.mark.ranks(1, 2, 4)
def test_the_text_of_one_rank_is_told_to_all(ranks):
    def body(comm):
        own = "ü" * comm.rank + f"text of {comm.rank}"
        return tell(comm, own), tell(comm, own, comm.size - 1), tell(comm, own[:0])

    last = ranks.size - 1
    assert ranks.run(body) == [("text of 0", "ü" * last + f"text of {last}", "")] * ranks.size
