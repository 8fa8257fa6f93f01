"""Threshold reuse (Ok-Topk, Li & Hoefler, PPoPP'22): last step's threshold selects this step's entries in one pass.

The threshold is a little below the k-th magnitude expected from the last steps. If k to about 3k/2 entries reach it,
the k largest are picked out of these exactly: top-k for one read of the vector, without drift. Otherwise a sample or a
histogram of *this* vector finds the k-th magnitude. The margin below it is controlled: smaller after a step that let
too many pass, larger after too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isfinite, sqrt
from struct import Struct

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, mantissa_bits
from sparse_mpi.checks import check_range
from sparse_mpi.kernels.base import Later, Number
from sparse_mpi.select.base import NOT_ZERO, Selector
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import Layout, SparseVector, at_least, truncate_least
from sparse_mpi.states import ranged

MIN_MARGIN_OCTAVES, MAX_MARGIN_OCTAVES = 1 / 256, 1 / 4


@dataclass(frozen=True)
class ThresholdState:
    # magnitude bits to try next; 0 before the first step, 1 where few entries are not zero
    threshold: Number = ranged("[0, bits)", 0)
    margin: float = ranged(f"[{MIN_MARGIN_OCTAVES}, {MAX_MARGIN_OCTAVES}]", 1 / 16)  # octaves below the expected `kth`
    kth: Number = ranged("[0, bits)", 0)  # magnitude bits of the last k-th magnitude


@dataclass(frozen=True)
class Threshold(Selector):
    """Threshold reuse (Ok-Topk: Li & Hoefler, PPoPP'22): the k largest magnitudes, by last step's threshold.

    Args:
        chance: growth of the k-th magnitude that is not expected to go on, times the root of k: what chance explains.
            It has no influence on what is selected.
    """

    chance: float = 0.25

    def __post_init__(self) -> None:
        check_range("chance", self.chance, "[0, inf)", "0.25 suits residuals")

    def init(self, layout: Layout, k: int) -> ThresholdState:
        return ThresholdState()

    def select(
        self, x: Array, k: int, state: ThresholdState, add: Array | None = None
    ) -> tuple[SparseVector, ThresholdState]:
        """Select exactly k entries of ``x`` ``(n,)``, but no zeros; the lower index wins a tie."""
        return self.select_standardized(x, None, k, state, add)

    def select_standardized(
        self, x: Array, squares: Array | None, k: int, state: ThresholdState, add: Array | None = None
    ) -> tuple[SparseVector, ThresholdState]:
        threshold = int(state.threshold)  # a device has computed it long ago
        chance = int(sqrt(k))  # deviation of the number that passes
        passed = at_least(x, max(threshold, NOT_ZERO), k + k // 2 + 6 * chance, add, squares)
        # Enough, or all that are not zero? Otherwise too few or too many passed: look at all of them
        if passed is not None and (len(passed.indices) >= k or threshold <= NOT_ZERO):
            change = 7 / 8 if len(passed.indices) > k + k // 4 + 2 * chance else 1.0
            selected, kth = truncate_least(passed, k, reuse=True)
        else:
            change = 1 / 2 if passed is None else 3 / 2
            selected, kth = truncate_least(
                largest(x if squares is None else kernels.of(x).standardized(x, squares), k), k
            )
        margin = state.margin
        if threshold:
            margin = min(max(margin * change, MIN_MARGIN_OCTAVES), MAX_MARGIN_OCTAVES)
        if len(selected.indices) < k:  # all nonzero ones: the next pass is to select them again
            return selected, ThresholdState(NOT_ZERO, margin)
        below = int(margin * (1 << mantissa_bits(x.dtype)))

        def expected() -> int:
            return max(_following(int(state.kth), int(kth), k, self.chance, x.dtype) - below, NOT_ZERO)

        # Where the host would wait for a device, it does so in the next step, when the number has long been there
        return selected, ThresholdState(Later(expected) if isinstance(kth, Later) else expected(), margin, kth=kth)


def _following(last: int, kth: int, k: int, chance: float, dtype: np.dtype) -> int:
    """Return the magnitude bits expected after ``last`` and ``kth``, the k-th magnitudes of two steps.

    A residual grows as the root of its number of independent gradients. So the square of its growth g is (t + 1) / t,
    and the next one 2 - 1 / g^2. A shrinking residual goes on. Differences that ``chance`` explains are ignored.
    """
    integer, real, largest = _formats(dtype)
    before, now = real.unpack(integer.pack(last))[0], real.unpack(integer.pack(kth))[0]
    if not (before and now and isfinite(before) and isfinite(now)):
        return kth
    growth = min(max(now / before, 0.5), 2.0)
    if abs(growth - 1) * sqrt(k) < chance:
        return kth
    growth = sqrt(2 - 1 / growth**2) if growth > 1 else growth
    found: int = integer.unpack(real.pack(min(now * growth, largest)))[0]
    return found


@cache
def _formats(dtype: np.dtype) -> tuple[Struct, Struct, float]:
    integer, real = ("=q", "=d") if dtype.itemsize == 8 else ("=i", "=f")
    return Struct(integer), Struct(real), float(np.finfo(dtype).max)
