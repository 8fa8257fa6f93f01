"""Alpha and beta of a network, fitted to messages that all ranks exchange at the same time, or to whole exchanges."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.costs import Network
from sparse_mpi.least_squares import nonnegative

REPEATS = 15  # of every size, of which half may be disturbed by whatever else the machine does


def measure(comm: Comm, sizes: Sequence[int], repeats: int = REPEATS) -> list[float]:
    """Median seconds of a message of each of ``sizes`` bytes, of the slowest rank. Collective; the same on all ranks.

    Every rank sends to the next one while the one before sends to it: links carry both directions at once, as in an
    exchange. The first message of each size is not counted.

    Raises:
        ValueError: there is one rank.
    """
    if comm.size < 2:
        raise ValueError("ranks must be at least 2 to measure a network, got 1; run under mpiexec")
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    medians = []
    for size in sizes:
        message, taken = np.zeros(size, np.uint8), []
        for _ in range(1 + repeats):
            comm.barrier()
            start = perf_counter()
            comm.sendrecv(message, after, before)
            taken.append(perf_counter() - start)
        medians.append(statistics.median(taken[1:]))
    return comm.allreduce(np.array(medians), "max", control=True).tolist()


def nearest(messages: Sequence[float], lengths: Sequence[float], seconds: Sequence[float]) -> Network:
    """The network nearest to measured ``seconds``, in relative error, with neither alpha nor beta below zero.

    Args:
        messages: of each measurement, one after the other.
        lengths: bytes of all of them together.
    """
    alpha, beta = nonnegative(np.column_stack([messages, lengths]), seconds)
    return Network(float(alpha), float(beta))
