"""Interface of a selector: dense vector in, SparseVector of about k entries out, and a state that is a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import floor
from operator import attrgetter
from typing import Any

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.rows import Pattern
from sparse_mpi.sparse import Layout, NoState, SparseVector

NOT_ZERO = 1  # the magnitude bits that every number but zero reaches


class Selector(ABC):
    """Base class of all selectors, which are frozen dataclasses of hyperparameters.

    ``select`` is deterministic, draws on no global generator, takes the lower index of equal magnitudes, and returns
    between ``band[0] * k`` and ``band[1] * k`` entries on any input (k itself when the band is (1, 1)), but no fewer
    than `floor`. A selector that is neither `shared` nor `patterned` returns no zeros, unless it has an option to: if
    too few entries are nonzero, only these.

    A selector implements ``select``, and ``init`` if it has a state; the other members have defaults.
    """

    def init(self, layout: Layout, k: int) -> Any:
        """Return the state before the first step; by default an empty one."""
        return NoState()

    @abstractmethod
    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        """Select about k entries of ``x`` ``(n,)``, 1 <= k <= n; return them and the next state.

        ``add`` ``(n,)`` is first added to ``x`` in place: in the pass that selects if a kernel can, else by
        `accumulate`. It may have half the precision of ``x``.
        """

    def select_standardized(
        self, x: Array, squares: Array, k: int, state: Any, add: Array | None = None
    ) -> tuple[SparseVector, Any]:
        """Select about k entries of ``x / sqrt(squares)``, as `select` does; ``add`` first joins ``x`` in place."""
        accumulate(x, add)
        return self.select(kernels.of(x).standardized(x, squares), k, state)

    @property
    def band(self) -> tuple[float, float]:
        """Return the fewest and the most selected entries, as multiples of k, if enough are nonzero."""
        return 1.0, 1.0

    def floor(self, layout: Layout) -> int:
        """Return the fewest entries selected from a vector of that layout, for any k."""
        return 1

    @property
    def shared(self) -> bool:
        """Tell if every rank selects the same positions: only values are sent."""
        return False

    @property
    def patterned(self) -> bool:
        """Tell if `pattern` and `longest` are known: counts of entries are not sent."""
        return False

    def pattern(self, k: int, state: Any) -> Pattern:
        """Return each row's number of entries in the next step, the same on every rank."""
        return ()

    def longest(self, layout: Layout, k: int) -> Pattern:
        """Return the pattern of the longest message of all steps."""
        return ()


def _forwarded(name: str) -> Any:
    return property(attrgetter(f"selector.{name}"))


class Wrapper(Selector):
    """A selector that delegates to another, for subclasses that observe selections."""

    band = _forwarded("band")
    floor = _forwarded("floor")
    shared = _forwarded("shared")
    patterned = _forwarded("patterned")
    pattern = _forwarded("pattern")
    longest = _forwarded("longest")
    init = _forwarded("init")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector

    def __repr__(self) -> str:
        return repr(self.selector)

    def select(self, x: Array, k: int, state: Any, add: Array | None = None) -> tuple[SparseVector, Any]:
        return self.selector.select(x, k, state, add)

    def select_standardized(
        self, x: Array, squares: Array, k: int, state: Any, add: Array | None = None
    ) -> tuple[SparseVector, Any]:
        return self.selector.select_standardized(x, squares, k, state, add)


def accumulate(x: Array, add: Array | None) -> None:
    if add is not None:
        kernels.of(x).accumulate(x, add)


def most_selected(selector: Selector, layout: Layout, k: int) -> float:
    return min(layout.size, max(k, selector.band[1] * k, selector.floor(layout)))


def fewest_selected(selector: Selector, k: int) -> int:
    """Return the fewest entries that the selector returns if enough are nonzero, at most k."""
    return floor(min(selector.band[0], 1) * k)
