"""Positions drawn at random, yet the same on every rank and in every run: a counter-based generator of seed and step.

Neither depends on nor changes the global state of NumPy, torch or Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Drawn:
    """The state of a selector that draws: how often it has."""

    step: int = 0

    def next(self) -> Drawn:
        """The state after one step more."""
        return Drawn(self.step + 1)


def check_seed(seed: int) -> None:
    """Raise ValueError unless ``seed`` is one that `generator` takes."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer in [0, 2**64), got {seed!r}")


def generator(seed: int, step: int) -> np.random.Generator:
    """The generator of one step: Philox, with the step in the counter's highest word, so that no two steps overlap."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, step]))


def positions(n: int, k: int, seed: int, step: int) -> np.ndarray:
    """k distinct positions of n, 1 <= k <= n, ascending: ``(k,)`` int64, in O(k) memory.

    One from each of k slices of a circle of n that is turned by a random angle: every position is equally likely, and
    they spread more evenly than independent ones.
    """
    drawing = generator(seed, step)
    width, wider = divmod(n, k)  # so many slices have one position more
    within = drawing.random(k)
    within[:wider] *= width + 1
    within[wider:] *= width
    chosen = within.astype(np.int64)
    del within
    chosen += np.arange(k) * width
    chosen[:wider] += np.arange(wider)
    chosen[wider:] += wider
    chosen += drawing.integers(n)
    inside = int(np.searchsorted(chosen, n))
    chosen[inside:] -= n
    return np.roll(chosen, k - inside)
