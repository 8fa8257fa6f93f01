"""What a selector is: dense vector in, SparseVector of about k entries out, and a state that is a value."""

from __future__ import annotations

from typing import Any, Protocol

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.sparse import Layout, SparseVector


class Selector(Protocol):
    """A frozen dataclass of hyperparameters.

    ``select`` is deterministic, draws on no global generator, takes the lower index of equal magnitudes, returns at
    least one entry, and between ``band[0] * k`` and ``band[1] * k`` of them on any input (k itself when the band is
    (1, 1)). A selector that takes some entries of every tensor, whatever k is, says how many in a method
    ``floor(layout) -> int``, and returns no fewer.
    """

    @property
    def band(self) -> tuple[float, float]:
        """The fewest and the most entries it returns, as multiples of k."""

    @property
    def shared(self) -> bool:
        """Whether every rank selects the same positions, so that only values need be sent."""

    def init(self, layout: Layout, k: int) -> Any:
        """The state before the first step."""

    def select(self, x: Array, k: int, state: Any) -> tuple[SparseVector, Any]:
        """The selected entries of ``x`` ``(n,)``, 1 <= k <= n, and the next state."""


def most_selected(selector: Selector, layout: Layout, k: int) -> float:
    """The most entries that the selector returns of a vector of that layout."""
    floor = selector.floor(layout) if hasattr(selector, "floor") else 1
    return max(k, selector.band[1] * k, floor)


def at_least(x: Array, threshold: int, most: int) -> SparseVector | None:
    """The entries of ``x`` whose magnitude bits reach ``threshold``, or None if there are more than ``most``."""
    found = kernels.of(x).select(x, threshold, most)
    return None if found is None else SparseVector(*found, len(x))
