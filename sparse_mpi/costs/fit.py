"""Alpha and beta of a network, fitted to messages that all ranks exchange at the same time, or to whole exchanges."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from time import perf_counter

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.costs.model import Network

MIN_SECONDS = 1e-6  # seconds; what is shorter is measured no better than this
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
    """The network nearest to measured ``seconds``, with neither alpha nor beta below zero.

    Of all networks that explain one measurement by alpha or beta alone, or two by both, the one that is off by the
    smallest factor on average: unlike least squares it does not follow the few that something else held up.

    Args:
        messages: of each measurement, one after the other.
        lengths: bytes of all of them together.
    """
    columns, measured = np.column_stack([messages, lengths]).astype(np.float64), np.maximum(seconds, MIN_SECONDS)
    with np.errstate(divide="ignore"):
        alone = measured[:, None] / columns
    tried = [np.array([0.0, beta]) for beta in alone[:, 1]] + [np.array([alpha, 0.0]) for alpha in alone[:, 0]]
    for first, second in combinations(range(len(measured)), 2):
        pair = columns[[first, second]]
        if abs(np.linalg.det(pair)) > 1e-9 * np.prod(np.linalg.norm(pair, axis=1)):
            tried.append(np.linalg.solve(pair, measured[[first, second]]))
    networks = np.array([network for network in tried if np.isfinite(network).all() and (network >= 0).all()])
    off = np.abs(np.log(np.maximum(networks @ columns.T, MIN_SECONDS) / measured)).mean(axis=1)
    alpha, beta = networks[off.argmin()]
    return Network(float(alpha), float(beta))
