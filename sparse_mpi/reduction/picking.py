"""Pick the algorithms and wire formats for a budget while training runs: `Picker`.

What is fastest depends on k and on the network, and under a budget both change. So the network is measured and the
candidates are tried again when k has settled, and where it has changed much since. Residuals stay: an algorithm that
takes over goes on with what the one before it owed, whatever the feedback rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import Decision
from sparse_mpi.comm import Comm
from sparse_mpi.network.fit import fit_network, measure, nearest
from sparse_mpi.network.model import Network
from sparse_mpi.reduction.auto import TRIALS, candidates, compare
from sparse_mpi.sparse import Layout

SETTLED = 10  # steps after which the first pick is made
PAUSE = 100  # steps between two picks at least, for trials cost as much as some steps
FACTOR = 4  # by which k must have changed since the last pick
SIZES = (1 << 16, 1 << 20)  # bytes between which the larger of the messages is to which the network is fitted
REPEATS = 3  # messages of each size
NOTHING = Network(0.0, 0.0)  # of a single rank


class Picker:
    """Decides when algorithms are picked, the same on all ranks, and picks them."""

    def __init__(self) -> None:
        self._step, self._k = 0, 0  # of the last pick

    def due(self, decision: Decision) -> bool:
        """Return True if algorithms should be picked for the k of ``decision``; note that they are."""
        first = self._step == 0 and decision.step >= SETTLED
        changed = max(decision.k, self._k) >= FACTOR * min(decision.k, self._k)
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


def follows_k(algorithm: Algorithm) -> bool:
    """Return True if ``algorithm`` sends less where k is smaller; one that is made of parts is taken to."""
    layout = Layout.of(1000)
    return bool(algorithm.parts) or algorithm.bound(layout, 1, 2) != algorithm.bound(layout, 1000, 2)


def pickable() -> list[Algorithm]:
    """Return the algorithms that may be picked: those that ``"auto"`` tries and that follow k."""
    return [algorithm for algorithm in candidates() if follows_k(algorithm)]


def pick(layouts: Sequence[Layout], ks: Sequence[int], comm: Comm) -> list[Algorithm]:
    """Return the fastest algorithm for k entries of each of ``layouts``, on the network as it is now. Collective.

    On a slow link trials must be cheap: they reduce a small part of each gradient, all candidates together about as
    much as one step beside the messages that measure the network. The model says what the exchange of the whole takes;
    what candidates compute counts as it is.
    """
    known = pickable()
    shrink = TRIALS * len(known)
    largest = min(max(SIZES[0], sum(ks)), SIZES[1])  # bytes, less than a step sends
    try:
        found = nearest([1, 1], [8, largest], measure(comm, [8, largest], REPEATS)) if comm.size > 1 else NOTHING
        comm.attributes[fit_network] = Network(found.alpha, found.beta * shrink)
        trials = [
            compare(known, Layout.of(max(1, layout.size // shrink)), max(1, k // shrink), comm)
            for layout, k in zip(layouts, ks, strict=True)
        ]
    finally:
        comm.attributes.pop(fit_network, None)
    return [min(tried, key=lambda trial: trial.seconds).algorithm for tried in trials]


def named(reprs: Sequence[str]) -> list[Algorithm]:
    """Return the algorithms of these representations.

    Raises:
        ValueError: one is not among `pickable`.
    """
    known = {repr(algorithm): algorithm for algorithm in pickable()}
    for text in reprs:
        if text not in known:
            raise ValueError(f"state must be of algorithms that 'auto' may pick, {', '.join(known)}; got {text}")
    return [known[text] for text in reprs]
