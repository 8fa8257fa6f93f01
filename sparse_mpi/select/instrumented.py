"""A selector that measures another one: how long it takes, how much it selects, and if it was given what to add."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from sparse_mpi.arrays import Array, synchronize
from sparse_mpi.select.base import Selector, Wrapper
from sparse_mpi.sparse import SparseVector


class Instrumented(Wrapper):
    """Measures the selections of the wrapped selector.

    Attributes:
        seconds: that all selections took, since the last `reset`.
        selected: pairs that they found.
        added: how many of them had something to add to their vector.
        span: when the last selection began and ended, in `time.perf_counter` seconds.
    """

    def __init__(self, selector: Selector) -> None:
        super().__init__(selector)
        self.span = (0.0, 0.0)
        self.reset()

    def reset(self) -> None:
        """Begin to add up anew."""
        self.seconds, self.selected, self.added = 0.0, 0, 0

    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        """Return the wrapped selector's selection; on a device, wait until it is there."""
        start = perf_counter()
        result, state = self.selector.select(x, k, state, add)
        synchronize(x)
        self.span = start, perf_counter()
        self.seconds += self.span[1] - start
        self.selected += result.nnz
        self.added += add is not None
        return result, state
