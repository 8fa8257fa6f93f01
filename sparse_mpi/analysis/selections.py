"""How many different entries the ranks of a `World` select together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array
from sparse_mpi.select import Selector
from sparse_mpi.sparse import Layout, SparseVector


class Union:
    """Wraps the selector that all ranks of a `World` share, and counts in ``counts`` what each step's selections cover.

    Steps are told apart by the number of selections: in a step every rank makes one, and none is a step ahead of
    another that has yet to make its own, because every step begins with an agreement.
    """

    def __init__(self, selector: Selector, size: int, ranks: int) -> None:
        self.selector = selector
        self.band, self.shared = selector.band, selector.shared
        self.counts: list[int] = []
        self._covered = np.zeros(size, bool)
        self._ranks, self._made = ranks, 0

    def __repr__(self) -> str:
        return repr(self.selector)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the wrapped selector can do, but for adding the gradient in a pass that cannot be watched."""
        if name in ("selector", "accumulate_select") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.selector, name)

    def init(self, layout: Layout, k: int) -> Any:
        """The wrapped selector's state."""
        return self.selector.init(layout, k)

    def select(self, x: Array, k: int, state: Any) -> tuple[SparseVector, Any]:
        """The wrapped selector's selection."""
        selected, state = self.selector.select(x, k, state)
        self._covered[selected.indices] = True
        self._made += 1
        if self._made % self._ranks == 0:
            self.counts.append(int(np.count_nonzero(self._covered)))
            self._covered[:] = False
        return selected, state


def watched(algorithm: Algorithm, size: int, ranks: int) -> tuple[Union | None, Algorithm]:
    """The algorithm with its selector watched; None where it has none."""
    if not hasattr(algorithm, "selector"):
        return None, algorithm
    union = Union(algorithm.selector, size, ranks)
    return union, replace(algorithm, selector=union)  # type: ignore[type-var]
