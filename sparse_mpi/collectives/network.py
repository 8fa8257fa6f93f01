"""The alpha-beta model: the time of counted traffic on a network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from time import perf_counter

import numpy as np

from sparse_mpi.comm import Comm, Traffic

MIN_SECONDS = 1e-6  # the precision of a measurement; shorter times count as this
SIZES = (8, 1 << 16, 1 << 20)  # bytes of the messages to which `fit_network` fits
FEW = 5  # messages of each size
REPEATS = 15  # messages of each size; the median is right if less than half of them are disturbed


@dataclass(frozen=True)
class Network:
    """A network's alpha and beta."""

    alpha: float  #: seconds a message takes, whatever its length
    beta: float  #: seconds a byte takes; the inverse of a rank's bandwidth

    @staticmethod
    def of(gigabits: float, microseconds: float) -> Network:
        """Return the network of a data sheet: a rank's bandwidth in Gbit/s, a message's latency in microseconds."""
        if not 0 < gigabits < inf or not 0 <= microseconds < inf:
            raise ValueError(f"a network needs gigabits > 0 and microseconds >= 0, got {gigabits} and {microseconds}")
        return Network(microseconds / 1e6, 8 / (gigabits * 1e9))

    def __str__(self) -> str:
        rate = f"{1e-9 / self.beta:.3g} GB/s" if self.beta else "bandwidth without limit"
        return f"{self.alpha * 1e6:.3g} us a message, {rate}"

    def seconds(self, traffic: Traffic) -> float:
        """Return the seconds of one rank's traffic; the payload's larger direction counts."""
        return self.alpha * traffic.messages + self.beta * (max(traffic.sent, traffic.received) + traffic.control)


def measure(comm: Comm, sizes: Sequence[int], repeats: int = REPEATS) -> list[float]:
    """Return the median seconds of messages of ``sizes`` bytes, on the slowest rank. Collective.

    Every rank sends to the next while the one before sends to it. The first message of each size does not count.
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


def fit_network(comm: Comm) -> Network:
    """Fit alpha and beta to messages between neighbours, once a communicator, for all ranks alike. Collective."""
    if comm.size == 1:
        return Network(0.0, 0.0)
    if fit_network not in comm.attributes:
        comm.attributes[fit_network] = nearest([1] * len(SIZES), SIZES, measure(comm, SIZES, FEW))
    found: Network = comm.attributes[fit_network]
    return found


def nearest(messages: Sequence[float], lengths: Sequence[float], seconds: Sequence[float]) -> Network:
    """Return the network, with alpha and beta >= 0, that explains measured ``seconds`` best.

    Candidates explain one measurement exactly by alpha or beta, or two by both; the best is off by the smallest factor
    on average. Unlike least squares, this ignores a few delayed measurements.
    """
    columns, measured = np.column_stack([messages, lengths]).astype(np.float64), np.maximum(seconds, MIN_SECONDS)
    with np.errstate(divide="ignore"):
        alone = measured[:, None] / columns
    tried = [np.array([0.0, beta]) for beta in alone[:, 1]] + [np.array([alpha, 0.0]) for alpha in alone[:, 0]]
    for first, second in combinations(range(len(measured)), 2):
        pair = columns[[first, second]]
        if abs(np.linalg.det(pair)) > 1e-9 * np.prod(np.linalg.norm(pair, axis=1)):
            tried.append(np.linalg.solve(pair, measured[[first, second]]))
    # Of candidates without a negative coefficient, take the one with the least mean logarithm of the factor.
    networks = np.array([network for network in tried if np.isfinite(network).all() and (network >= 0).all()])
    off = np.abs(np.log(np.maximum(networks @ columns.T, MIN_SECONDS) / measured)).mean(axis=1)
    alpha, beta = networks[off.argmin()]
    return Network(float(alpha), float(beta))
