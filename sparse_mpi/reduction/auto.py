"""Pick the algorithm and wire format that are fastest here, by trial and the alpha-beta model: ``algorithm="auto"``.

The computing time of a step is measured and its traffic counted. The time that the traffic takes follows from the
network's alpha and beta, which are fitted to a few messages; on a shared network this is less noisy than timing the
exchange itself.

Trials reduce vectors in host memory with the given communicator: for gradients on a device name the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.network.fit import fit_network
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.sparse import Layout

AUTO = "auto"
WIRES = ("coo32", "packed")  # lossless: rounding must be asked for
TRIALS = 2  # steps of a trial, of which only the last counts


class Trial(NamedTuple):
    """The cost of a step of a candidate, the same on all ranks."""

    algorithm: Algorithm
    compute: float  # seconds, of the slowest rank
    exchange: float  # seconds by the model, of the busiest rank

    @property
    def seconds(self) -> float:
        """Return the time of a step."""
        return self.compute + self.exchange


def make_candidate(algorithm: str | Algorithm, options: dict[str, Any]) -> Algorithm | None:
    """Return the algorithm that a caller asks for, or None if `choose` is to pick one.

    Raises:
        ValueError: no algorithm has that name, or an option has a bad value.
        TypeError: there is no such option, or ``algorithm`` is neither a name nor an instance.
    """
    if algorithm != AUTO:
        return make_algorithm(algorithm, options)
    if options:
        raise TypeError(f"options {sorted(options)} must not be given with algorithm='auto'; name the algorithm")
    return None


def choose(layout: Layout, k: int, comm: Comm) -> Algorithm:
    """Return the fastest candidate for gradients of ``layout`` on the ranks of ``comm``. Collective.

    What was chosen once for a communicator, layout and k is kept as an attribute of that communicator, and chosen again
    without a trial.
    """
    key = (choose, layout, k)
    if key not in comm.attributes:
        trials = compare(candidates(), layout, k, comm)
        comm.attributes[key] = min(trials, key=lambda trial: trial.seconds).algorithm
    return comm.attributes[key]


def candidates() -> list[Algorithm]:
    """Return the algorithms among which `choose` picks: those that reduce any gradient, in every lossless format."""
    names = [name for name, kind in ALGORITHMS.items() if kind().traits.auto_candidate]
    made = [(name, {"wire": wire} if takes(name, "wire", wire) else {}) for name in names for wire in WIRES]
    return list(dict.fromkeys(make_algorithm(name, options) for name, options in made))


def compare(algorithms: Sequence[Algorithm], layout: Layout, k: int, comm: Comm) -> list[Trial]:
    """Try all ``algorithms`` on Gaussian gradients; return the trials, the same on every rank. Collective."""
    network = fit_network(comm)
    acc = np.random.default_rng([layout.size, comm.rank]).standard_normal(layout.size, np.float32)
    measured = []
    for algorithm in algorithms:
        compute, traffic = _trial(algorithm, acc, layout, k, comm)
        measured.append((compute, network.seconds(traffic)))
    slowest = comm.allreduce(np.array(measured), "max", control=True)
    return [Trial(algorithm, *times) for algorithm, times in zip(algorithms, slowest.tolist(), strict=True)]


def _trial(algorithm: Algorithm, acc: np.ndarray, layout: Layout, k: int, comm: Comm) -> tuple[float, Traffic]:
    """Return the seconds that the last step computes, and its traffic."""
    state = algorithm.init(layout, k, comm.size)
    for _ in range(TRIALS):
        comm.barrier()
        before, start = comm.traffic.copy(), perf_counter()
        _, state = algorithm.reduce(acc, k, comm, state, layout)
        spent, traffic = perf_counter() - start, comm.traffic - before
    return spent - traffic.seconds, traffic
