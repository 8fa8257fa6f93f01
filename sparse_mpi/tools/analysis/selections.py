"""The number of different entries that the ranks of a `World` select together."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.algorithms.base import with_selectors
from sparse_mpi.arrays import Array
from sparse_mpi.select import Selector
from sparse_mpi.select.base import Wrapper
from sparse_mpi.sparse import SparseVector


class Union(Wrapper):
    """Wraps the selector that all ranks of a `World` share, and counts in ``counts`` what each step's selections cover.

    Steps are told apart by the number of selections: in a step every rank makes one, and none is a step ahead of
    another that has yet to make its own, because every step begins with an agreement.
    """

    def __init__(self, selector: Selector, size: int, ranks: int) -> None:
        super().__init__(selector)
        self.counts: list[int] = []
        self._covered = np.zeros(size, bool)
        self._ranks, self._made = ranks, 0

    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        """Return the wrapped selector's selection."""
        selected, state = self.selector.select(x, k, state, add)
        self._covered[selected.indices] = True
        self._made += 1
        if self._made % self._ranks == 0:
            self.counts.append(int(np.count_nonzero(self._covered)))
            self._covered[:] = False
        return selected, state


def instrumented(algorithm: Algorithm, size: int, ranks: int) -> tuple[Union | None, Algorithm]:
    """Return the algorithm with its selector wrapped, and the `Union` that wraps it; None where it has no selector."""
    if algorithm.selector is None:
        return None, algorithm
    union = Union(algorithm.selector, size, ranks)
    return union, with_selectors(algorithm, lambda _: union)
