"""Results of longdouble are the same bytes on every rank, although six of the bytes of an 80-bit one hold nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import collectives
from sparse_mpi.collectives.algorithms import ALGORITHMS

KINDS = ["longdouble", "clongdouble"]
SIZE = 200


def noise():
    """Leave something other than zeros in memory that is used next."""
    return [np.frombuffer(np.random.default_rng(seed).bytes(64 * SIZE), np.uint8).copy() for seed in range(9)]


def values(kind, rank):
    noise()
    return np.random.default_rng(rank).standard_normal(SIZE).astype(kind)


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
def test_results_are_the_same_bytes(ranks, algorithm, kind):
    def body(comm):
        given = np.arange(SIZE) * (1 + comm.rank % 2), values(kind, comm.rank)
        found = [collectives.allreduce(given, comm=comm, algorithm=algorithm)]
        found += [collectives.allreduce(given, "max", comm=comm, algorithm=algorithm)] if kind == "longdouble" else []
        found += collectives.allgather(given, comm=comm)
        return [keys.tobytes() + numbers.tobytes() for keys, numbers in found]

    first, *others = ranks.run(body)
    assert all(other == first for other in others)


@pytest.mark.ranks(3)
def test_rounds_of_a_persistent_one_are_the_same_bytes(ranks):
    def body(comm):
        request = collectives.allreduce_init(np.arange(SIZE), comm=comm, dtype="longdouble")
        request.start(values("longdouble", comm.rank))
        return request.wait().tobytes()

    assert len(set(ranks.run(body))) == 1
