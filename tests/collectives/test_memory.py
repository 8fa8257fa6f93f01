"""The memory that a collective holds, beside its input and result."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest

from sparse_mpi import collectives
from sparse_mpi_bench.analysis.keyed_volume import CASES


@pytest.mark.thin(1)
@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("case", ["uniform", "disjoint", "identical"])
@pytest.mark.parametrize("way", ["split", "butterfly", "auto"])
def test_no_more_than_three_times_what_comes_and_goes(ranks, way, case):
    given = {}

    def body(comm):
        keys = given.setdefault(comm.rank, CASES[case](comm.rank, comm.size, 5 * 10**6, 50_000))
        found = collectives.allreduce((keys, np.ones(len(keys))), comm=comm, algorithm=way)
        return os.getpid(), 16 * (len(keys) + len(found[0]))

    ranks.run(body)  # compiles, and connects
    tracemalloc.start()
    found = ranks.run(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Ranks of a world share a process. The keys are not counted, but the values are.
    given_keys = sum(8 * len(keys) for keys in given.values())
    assert peak + given_keys <= 3 * sum(needed for process, needed in found if process == os.getpid())
