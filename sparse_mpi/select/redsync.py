"""Selection between the mean and the largest magnitude (RedSync: Fang et al., JPDC 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_whole
from sparse_mpi.select.base import Selector, accumulate
from sparse_mpi.select.estimate import Attempt, attempt, settle
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import Layout, NoState, SparseVector, truncate

RATIOS = (0.8, 0.6, 0.4, 0.2, 0.0)
MAX_SELECTED_PER_K = 1.75  # a pass that finds more entries ends early, so that they never fill memory


@dataclass(frozen=True)
class RedSync(Selector):
    """RedSync (Fang et al., JPDC 2019): magnitudes beyond mean + m (max - mean), m by bisection until k to 1.75k are.

    The paper stops below 2k. A pass counts and selects at once, and ends early where there are too many. Where
    ``halvings`` of m do not lead there (heavy tails, one huge outlier, ties) the selection is exact top-k.

    Args:
        halvings: the most bisections of the range of m; 10 resolve it to a thousandth.
    """

    halvings: int = 10

    band: ClassVar[tuple[float, float]] = (1.0, MAX_SELECTED_PER_K)
    exact_order: ClassVar[bool] = False  # its mean is a sum in an order that is each library's own

    def __post_init__(self) -> None:
        check_whole("halvings", self.halvings, 1)

    def init(self, layout: Layout, k: int) -> NoState:
        """Return the empty state: nothing is remembered from step to step."""
        return NoState()

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        """Select between k and 1.75k entries of ``x`` ``(n,)``."""
        accumulate(x, add)
        mean, peak = _mean_and_largest(x)
        low, high, tried = 0.0, 1.0, Attempt(None, 0)
        for _ in range(self.halvings):
            middle = (low + high) / 2
            tried = attempt(x, mean + middle * (peak - mean), k, self.band)
            if tried.selected is not None:
                break
            if tried.reached > k:
                low = middle
            else:
                high = middle
        return settle(tried, x, k), state


@dataclass(frozen=True)
class RedSyncTrim(Selector):
    """RedSync, trimmed (Fang et al., JPDC 2019): the k largest beyond mean + m (max - mean), m from 0.8 down by 0.2.

    The first m that at least k entries pass decides. Where no m does, or where more than 1.75k entries pass, the k
    largest are found as the selector ``exact`` finds them; the selection is the same.
    """

    def init(self, layout: Layout, k: int) -> NoState:
        """Return the empty state: nothing is remembered from step to step."""
        return NoState()

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        """Select exactly k entries of ``x`` ``(n,)``; of equal magnitudes those of lower index."""
        accumulate(x, add)
        mean, peak = _mean_and_largest(x)
        for ratio in RATIOS:
            tried = attempt(x, mean + ratio * (peak - mean), k, band=(1, MAX_SELECTED_PER_K))
            if tried.selected is not None:
                return truncate(tried.selected, k, reuse=True), state
            if tried.reached > k:
                break
        return largest(x, k), state


def _mean_and_largest(x: Array) -> tuple[float, float]:
    """Return the mean and the largest of the magnitudes of ``x`` ``(n,)``."""
    moments = kernels.of(x).moments(x, 0)
    return moments.total / moments.entries, moments.largest
