"""Alpha and beta of the network between MPI ranks, from messages of many lengths that neighbours exchange."""

from __future__ import annotations

import statistics
from time import perf_counter

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.costs import Network
from sparse_mpi.plan.fit import nonnegative

SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
WARMUP, REPEATS = 3, 15


def measure(comm: Comm, sizes: tuple[int, ...] = SIZES) -> list[float]:
    """Median seconds of a message of each of ``sizes`` bytes, of the slowest rank. Collective.

    Ranks 2i and 2i + 1 send to each other at the same time, as ranks do in an exchange; all pairs at once. The last of
    an odd number of ranks is left out.

    Raises:
        ValueError: there is one rank.
    """
    if comm.size < 2:
        raise ValueError("ranks must be at least 2 to measure a network, got 1; run under mpiexec")
    partner = comm.rank ^ 1 if comm.rank ^ 1 < comm.size else None
    medians = []
    for size in sizes:
        message, taken = np.zeros(size, np.uint8), []
        for _ in range(WARMUP + REPEATS):
            comm.barrier()
            start = perf_counter()
            comm.sendrecv(message, partner, partner)
            taken.append(perf_counter() - start)
        medians.append(0.0 if partner is None else statistics.median(taken[WARMUP:]))
    return comm.allreduce(np.array(medians), "max", control=True).tolist()


def network(sizes: tuple[int, ...], seconds: list[float]) -> Network:
    """The straight line nearest to the measured seconds, in relative error."""
    alpha, beta = nonnegative([[1.0, size] for size in sizes], seconds)
    return Network(float(alpha), float(beta))
