"""``algorithm="auto"``: the algorithm and message format that are fastest here, by trial and the alpha-beta model.

What a step computes is measured, what it sends is counted, and what that takes follows from a network's alpha and beta,
which are fitted to a few messages: on a shared network less noisy than timing the exchange itself.

Trials reduce vectors in host memory, by the communicator as it is: for gradients on a device name the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.costs.fit import measure, nearest
from sparse_mpi.costs.model import Network
from sparse_mpi.reducer.arguments import make_algorithm, takes
from sparse_mpi.sparse import Layout

AUTO = "auto"
WIRES = ("coo32", "packed")  # nothing is rounded that nobody asked to have rounded
SIZES = (8, 1 << 16, 1 << 20)  # bytes of the messages that the network is fitted to
TRIALS = 2  # steps, the first of which is not counted
MESSAGES = 5  # of each size


class Trial(NamedTuple):
    """What a step of a candidate costs, the same on all ranks."""

    algorithm: Algorithm
    compute: float  # seconds, of the slowest rank
    exchange: float  # seconds by the model, of the busiest rank

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.compute + self.exchange


def make_candidate(algorithm: str | Algorithm, options: dict[str, Any]) -> Algorithm | None:
    """What a caller means by these; None for `choose` to decide.

    Raises:
        ValueError: no such name, or a bad value of an option.
        TypeError: no such option, or neither a name nor an instance.
    """
    if algorithm != AUTO:
        return make_algorithm(algorithm, options)
    if options:
        raise TypeError(f"options {sorted(options)} must not be given with algorithm='auto'; name the algorithm")
    return None


def choose(layout: Layout, k: int, comm: Comm) -> Algorithm:
    """The fastest candidate for gradients of that ``layout`` on the ranks of ``comm``; collective.

    What was chosen once for a communicator, layout and k is kept as an attribute of that communicator, and chosen again
    without a trial.
    """
    key = (choose, layout, k)
    if key not in comm.attributes:
        trials = compare(candidates(), layout, k, comm)
        comm.attributes[key] = min(trials, key=lambda trial: trial.seconds).algorithm
    return comm.attributes[key]


def candidates() -> list[Algorithm]:
    """What `choose` chooses from: lossless formats of algorithms that reduce any gradient."""
    names = [name for name, kind in ALGORITHMS.items() if kind().automatic]
    made = [(name, {"wire": wire} if takes(name, "wire", wire) else {}) for name in names for wire in WIRES]
    return list(dict.fromkeys(make_algorithm(name, options) for name, options in made))


def compare(algorithms: Sequence[Algorithm], layout: Layout, k: int, comm: Comm) -> list[Trial]:
    """Trial steps of all ``algorithms`` on Gaussian gradients; collective, and the same on every rank."""
    network = fit_network(comm)
    acc = np.random.default_rng([layout.size, comm.rank]).standard_normal(layout.size, np.float32)
    measured = []
    for algorithm in algorithms:
        compute, traffic = _trial(algorithm, acc, layout, k, comm)
        measured.append((compute, network.seconds(traffic)))
    slowest = comm.allreduce(np.array(measured), "max", control=True)
    return [Trial(algorithm, *times) for algorithm, times in zip(algorithms, slowest.tolist(), strict=True)]


def fit_network(comm: Comm) -> Network:
    """Alpha and beta of messages between neighbours; collective, and the same on every rank."""
    if comm.size == 1:
        return Network(0.0, 0.0)
    return nearest([1] * len(SIZES), SIZES, measure(comm, SIZES, MESSAGES))


def _trial(algorithm: Algorithm, acc: np.ndarray, layout: Layout, k: int, comm: Comm) -> tuple[float, Traffic]:
    """Seconds that the last step computes, and its traffic."""
    state = algorithm.init(layout, k, comm.size)
    for _ in range(TRIALS):
        comm.barrier()
        before, start = comm.traffic.copy(), perf_counter()
        _, state = algorithm.reduce(acc, k, comm, state, layout)
        spent, traffic = perf_counter() - start, comm.traffic - before
    return spent - traffic.seconds, traffic
