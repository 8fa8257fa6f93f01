"""Find the algorithm and wire format that are fastest here, by trial and the alpha-beta model: ``algorithm="auto"``.

The computing time of a step is measured and its traffic counted. The time that the traffic takes follows from the
network's alpha and beta, which are fitted to a few messages; on a shared network this is less noisy than timing the
exchange itself. Trials reduce vectors in host memory with the given communicator: for gradients on a device name the
algorithm.

What is fastest depends on k and on the network, and under a budget both change. So an `AutoTuner` has the network
measured and the candidates tried again when k has settled, and where it has changed much since. Residuals stay: an
algorithm that takes over goes on with what the one before it owed, whatever the feedback rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.budget import Decision
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.network import Network, fit_network, measure, nearest
from sparse_mpi.reduction.arguments import make_algorithm, takes
from sparse_mpi.sparse import Layout

AUTO = "auto"
WIRES = ("coo32", "packed")  # lossless: rounding must be asked for
TRIALS = 2  # steps of a trial, of which only the last counts
SETTLED = 10  # steps after which an `AutoTuner` tunes first
PAUSE = 100  # steps from one tuning to the next at least, for trials cost as much as some steps
FACTOR = 4  # by which k must have changed since the last tuning
SIZES = (1 << 16, 1 << 20)  # bytes between which the larger message lies to which `fastest_now` fits the network
REPEATS = 3  # messages of each size


class Trial(NamedTuple):
    """The cost of a step of a candidate, the same on all ranks."""

    algorithm: Algorithm
    compute: float  # seconds, of the slowest rank
    exchange: float  # seconds by the model, of the busiest rank

    @property
    def seconds(self) -> float:
        """Return the time of a step."""
        return self.compute + self.exchange


class AutoTuner:
    """The schedule of tuning under a budget, the same on all ranks."""

    def __init__(self) -> None:
        self._step, self._k = 0, 0  # of the last tuning

    def due(self, decision: Decision) -> bool:
        """Return True if algorithms should be tuned to the k of ``decision``; note that they are."""
        # The first tuning waits until the controller has settled on a k, later ones until k has moved far from that
        first = self._step == 0 and decision.step >= SETTLED
        changed = max(decision.k, self._k) >= FACTOR * min(decision.k, self._k)
        # A dense step has no k to tune to
        if decision.dense or not (first or (self._step and changed and decision.step >= self._step + PAUSE)):
            return False
        self._step, self._k = decision.step, decision.k
        return True

    def state(self) -> list[int]:
        """Return what `load` takes."""
        return [self._step, self._k]

    def load(self, state: Sequence[int]) -> None:
        """Go on from a `state`."""
        self._step, self._k = state


def make_candidate(algorithm: str | Algorithm, options: dict[str, Any]) -> Algorithm | None:
    """Return the algorithm that a caller asks for, or None if `fastest` is to find one.

    Raises:
        ValueError: no algorithm has that name, or an option has a bad value.
        TypeError: there is no such option, or ``algorithm`` is neither a name nor an instance.
    """
    if algorithm != AUTO:
        return make_algorithm(algorithm, options)
    if options:
        raise TypeError(f"options {sorted(options)} must not be given with algorithm='auto'; name the algorithm")
    return None


def candidates() -> list[Algorithm]:
    """Return the algorithms that `fastest` tries: those that reduce any gradient, in every lossless format."""
    names = [name for name, kind in ALGORITHMS.items() if kind().traits.auto_candidate]
    made = [(name, {"wire": wire} if takes(name, "wire", wire) else {}) for name in names for wire in WIRES]
    # An algorithm without wire formats was made once for each of them: keep one
    return list(dict.fromkeys(make_algorithm(name, options) for name, options in made))


def depends_on_k(algorithm: Algorithm) -> bool:
    """Return True if ``algorithm`` sends less where k is smaller; one that is made of parts is taken to."""
    layout = Layout.of(1000)
    return bool(algorithm.parts) or algorithm.bound(layout, 1, 2) != algorithm.bound(layout, 1000, 2)


def budget_candidates() -> list[Algorithm]:
    """Return the algorithms that `fastest_now` tries: those of `candidates` that depend on k."""
    return [algorithm for algorithm in candidates() if depends_on_k(algorithm)]


def candidates_of(reprs: Sequence[str]) -> list[Algorithm]:
    """Return the algorithms of these representations.

    Raises:
        ValueError: one is not among `budget_candidates`.
    """
    # A state names algorithms by their repr: they are looked up, for text from a file must not be evaluated
    known = {repr(algorithm): algorithm for algorithm in budget_candidates()}
    for text in reprs:
        if text not in known:
            raise ValueError(f"state must be of algorithms that 'auto' may pick, {', '.join(known)}; got {text}")
    return [known[text] for text in reprs]


def fastest(layout: Layout, k: int, comm: Comm) -> Algorithm:
    """Return the fastest candidate for gradients of ``layout`` on the ranks of ``comm``. Collective.

    What was found once for a communicator, layout and k is kept as an attribute of that communicator, and returned
    again without a trial.
    """
    key = (fastest, layout, k)
    if key not in comm.attributes:
        comm.attributes[key] = _best(try_all(candidates(), layout, k, comm, fit_network(comm)))
    return comm.attributes[key]


def fastest_now(layouts: Sequence[Layout], ks: Sequence[int], comm: Comm) -> list[Algorithm]:
    """Return the fastest algorithm for k entries of each of ``layouts``, on the network as it is now. Collective.

    On a slow link trials must be cheap: they reduce a small part of each gradient, all candidates together about as
    much as one step beside the messages that measure the network. The model says what the exchange of the whole takes;
    what candidates compute counts as it is.
    """
    known = budget_candidates()
    # Each candidate makes TRIALS steps, each with 1 / shrink of the gradient: all together are about one step
    shrink = TRIALS * len(known)
    largest = min(max(SIZES[0], sum(ks)), SIZES[1])  # bytes, less than a step sends
    network = Network(0.0, 0.0)
    if comm.size > 1:
        network = nearest([1, 1], [8, largest], measure(comm, [8, largest], REPEATS))
        # Trials send 1 / shrink of the bytes of a step, but as many messages: only beta is scaled up
        network = Network(network.alpha, network.beta * shrink)
    parts = [
        (Layout.of(max(1, layout.size // shrink)), max(1, k // shrink)) for layout, k in zip(layouts, ks, strict=True)
    ]
    return [_best(try_all(known, layout, k, comm, network)) for layout, k in parts]


def try_all(algorithms: Sequence[Algorithm], layout: Layout, k: int, comm: Comm, network: Network) -> list[Trial]:
    """Try all ``algorithms`` on Gaussian gradients; return the trials, the same on every rank. Collective."""
    # Ranks have independent gradients, the same ones in every run
    acc = np.random.default_rng([layout.size, comm.rank]).standard_normal(layout.size, np.float32)
    measured = []
    for algorithm in algorithms:
        compute, traffic = _trial(algorithm, acc, layout, k, comm)
        measured.append((compute, network.seconds(traffic)))
    # The slowest rank counts in computing, the busiest in the exchange; all ranks get the same numbers
    slowest = comm.allreduce(np.array(measured), "max", control=True)
    return [Trial(algorithm, *times) for algorithm, times in zip(algorithms, slowest.tolist(), strict=True)]


def _best(trials: Sequence[Trial]) -> Algorithm:
    """Return the algorithm of the fastest trial."""
    return min(trials, key=lambda trial: trial.seconds).algorithm


def _trial(algorithm: Algorithm, acc: np.ndarray, layout: Layout, k: int, comm: Comm) -> tuple[float, Traffic]:
    """Return the seconds that the last step computes, and its traffic."""
    state = algorithm.init(layout, k, comm.size)
    for _ in range(TRIALS):
        comm.barrier()
        before, start = comm.traffic.copy(), perf_counter()
        _, state = algorithm.reduce(acc, k, comm, state, layout)
        spent, traffic = perf_counter() - start, comm.traffic - before
    # The model says how long the exchange takes: the time inside calls, waiting included, does not count
    return spent - traffic.seconds, traffic
