"""A selector that watches another one, how long it takes and how much it selects, and lets it add the gradient."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, synchronize
from sparse_mpi.select.base import Selector
from sparse_mpi.sparse import Layout, SparseVector


class Timed:
    """Wraps a selector; adds up ``seconds`` and ``selected`` (pairs) until they are set back to zero.

    ``missing`` is what has yet to be added, in place, to the next vector that is selected from: by the selector itself
    in the same pass, if it has ``accumulate_select``.
    """

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.band = selector.band
        self.shared = selector.shared
        self.seconds = 0.0
        self.span = (0.0, 0.0)  # when the last selection began and ended
        self.selected = 0
        self.missing: Array | None = None

    def __getattr__(self, name: str) -> Any:
        """Whatever else the wrapped selector can do."""
        if name == "selector" or name.startswith("__"):  # asked for by copy and pickle before there is one
            raise AttributeError(name)
        return getattr(self.selector, name)

    def init(self, layout: Layout, k: int) -> Any:
        """The wrapped selector's state."""
        return self.selector.init(layout, k)

    def select(self, x: Array, k: int, state: Any) -> tuple[SparseVector, Any]:
        """The wrapped selector's selection, timed."""
        start = perf_counter()
        missing, self.missing = self.missing, None
        if missing is not None and hasattr(self.selector, "accumulate_select"):
            result, state = self.selector.accumulate_select(x, missing, k, state)
        else:
            if missing is not None:
                kernels.accumulate(x, missing)
            result, state = self.selector.select(x, k, state)
        synchronize(x)
        self.span = start, perf_counter()
        self.seconds += self.span[1] - start
        self.selected += result.nnz
        return result, state
