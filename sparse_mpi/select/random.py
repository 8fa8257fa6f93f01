"""Random selection: positions are the same on every rank and in every run, and not sent.

A counter-based generator draws them by seed and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparse_mpi.arrays import Array, index_dtype, like
from sparse_mpi.checks import check_whole
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import ranged


@dataclass(frozen=True)
class Drawn:
    step: int = ranged("[0, many)", 0, replicated=True)  # draws made so far

    def next(self) -> Drawn:
        return Drawn(self.step + 1)


def check_seed(seed: int) -> None:
    check_whole("seed", seed, 0, most=2**64 - 1)


def generator(seed: int, step: int) -> np.random.Generator:
    """Return a step's generator: Philox, with the step in the counter's highest word, so that none overlap."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, step]))


def positions(n: int, k: int, seed: int, step: int) -> np.ndarray:
    """Draw k distinct positions out of n, 1 <= k <= n, in O(k) memory: ``(k,)`` int64, ascending.

    The n positions are a circle, turned by a random angle and cut into k slices, which give one position each. Every
    position is equally likely, and they spread more evenly than independent ones.
    """
    drawing = generator(seed, step)
    # Slice i has ``width`` positions, the first ``wider`` slices one more: draw where in its slice each position lies.
    width, wider = divmod(n, k)
    within = drawing.random(k)
    within[:wider] *= width + 1
    within[wider:] *= width
    chosen = within.astype(np.int64)
    del within

    # Add where the slice starts.
    chosen += np.arange(k) * width
    chosen[:wider] += np.arange(wider)
    chosen[wider:] += wider

    # Turn the circle; positions that pass its end come first.
    chosen += drawing.integers(n)
    inside = int(np.searchsorted(chosen, n))
    chosen[inside:] -= n
    return np.roll(chosen, k - inside)


@dataclass(frozen=True)
class Random(Selector):
    """Random-k (Stich et al., NeurIPS 2018): k positions drawn anew in every step, the same on every rank.

    Magnitudes play no part: a NaN or Inf stays in the residual until its position is drawn.

    Args:
        seed: seed of the positions, an integer in ``[0, 2**64)``; must be the same on all ranks.
    """

    seed: int = 0

    shared: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def init(self, layout: Layout, k: int) -> Drawn:
        return Drawn()

    def select(self, x: Array, k: int, state: Drawn, add: Array | None = None) -> tuple[SparseVector, Drawn]:
        accumulate(x, add)
        indices = like(positions(len(x), k, self.seed, state.step).astype(index_dtype(len(x))), x)
        return SparseVector(indices, x[indices], len(x)), state.next()
