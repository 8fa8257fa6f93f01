"""Threshold reuse (Ok-Topk, Li & Hoefler, PPoPP'22): last step's threshold selects this step's entries in one pass.

The threshold is a little below the k-th magnitude expected from the last steps. If k to about 3k/2 entries reach it,
the k largest are picked out of these exactly: top-k for one read of the vector, without drift. Otherwise the k-th
magnitude of *this* vector is searched: by a sample or a histogram, on a device by a radix select. The margin below it
is controlled: smaller after a step that let too many pass, larger after too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import isfinite, sqrt
from struct import Struct

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, is_device, mantissa_bits
from sparse_mpi.checks import check_range, check_switch
from sparse_mpi.kernels.array import completed
from sparse_mpi.kernels.base import Later, Number, Real
from sparse_mpi.select.base import NOT_ZERO, Selector
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import Layout, SparseVector, at_least, take, truncate_least
from sparse_mpi.states import ranged

MIN_MARGIN_OCTAVES, MAX_MARGIN_OCTAVES = 1 / 256, 1 / 4


@dataclass(frozen=True)
class ThresholdState:
    # magnitude bits to try next; 0 before the first step, 1 where few entries are not zero
    threshold: Number = ranged("[0, bits)", 0)
    margin: Real = ranged(f"[{MIN_MARGIN_OCTAVES}, {MAX_MARGIN_OCTAVES}]", 1 / 16)  # octaves below the expected `kth`
    kth: Number = ranged("[0, bits)", 0)  # magnitude bits of the last k-th magnitude


@dataclass(frozen=True)
class Threshold(Selector):
    """Threshold reuse (Ok-Topk: Li & Hoefler, PPoPP'22): the k largest magnitudes, by last step's threshold.

    Args:
        chance: growth of the k-th magnitude that is not expected to go on, times the root of k: what chance explains.
            It has no influence on what is selected.
        zeros: switch to select exactly k entries, if need be the first zeros, too; then no host waits for a device.
    """

    chance: float = 0.25
    zeros: bool = False

    def __post_init__(self) -> None:
        check_range("chance", self.chance, "[0, inf)", "0.25 suits residuals")
        check_switch("zeros", self.zeros)

    def init(self, layout: Layout, k: int) -> ThresholdState:
        return ThresholdState()

    def select(
        self, x: Array, k: int, state: ThresholdState, add: Array | None = None
    ) -> tuple[SparseVector, ThresholdState]:
        """Select the k largest entries of ``x`` ``(n,)``, zeros only if `zeros` is set; the lower index wins a tie."""
        return self.select_standardized(x, None, k, state, add)

    def select_standardized(
        self, x: Array, squares: Array | None, k: int, state: ThresholdState, add: Array | None = None
    ) -> tuple[SparseVector, ThresholdState]:
        last, before, on_device = state.threshold, state.kth, is_device(x)
        threshold = int(last.latest()) if self.zeros and isinstance(last, Later) else int(last)
        most, reached = k + k // 2 + 6 * int(sqrt(k)), max(threshold, NOT_ZERO)
        if on_device:
            indices, values, kth, count = kernels.device().largest(x, k, reached, most, add, squares)
            selected = SparseVector(indices, values, len(x))
            if not self.zeros:
                kth, count = int(kth), int(count)
                selected = selected if kth else take(selected, values != 0)
        else:
            passed = at_least(x, reached, most, add, squares)
            count = most + 1 if passed is None else len(passed.indices)
            # Neither enough, nor all that are not zero? Then look at all of them.
            if passed is None or (count < k and threshold > NOT_ZERO):
                passed = largest(x if squares is None else kernels.of(x).standardized(x, squares), k)
            selected, kth = truncate_least(passed, k, reuse=True)
            if self.zeros and len(selected.indices) < k:
                pairs = completed(*selected[:2], np.array([len(selected.indices)]), np.array([k]), len(x))
                selected, kth = SparseVector(*pairs, len(x)), 0

        # The host does not wait for a device: until these numbers are known, the last known threshold serves
        find, dtype = partial(_next_margin, state.margin, count, k, most, threshold), selected.values.dtype
        margin = Later(find) if isinstance(count, Later) else find()
        if len(selected.indices) < k:  # all nonzero ones: the next pass is to select them again
            return selected, ThresholdState(NOT_ZERO, margin)

        def expected() -> int:
            below = int(float(margin) * (1 << mantissa_bits(dtype)))
            return max(_following(int(before), int(kth), k, self.chance, dtype) - below, NOT_ZERO)

        following = Later(expected, kth.known, last) if isinstance(kth, Later) else expected()
        return selected, ThresholdState(following, margin, kth=kth)


def _next_margin(margin: Real, passed: Number, k: int, most: int, threshold: int) -> float:
    passed, plenty = int(passed), k + k // 4 + 2 * int(sqrt(k))
    if threshold == 0 or (threshold == NOT_ZERO and passed < k):
        return float(margin)
    change = 3 / 2 if passed < k else 1 / 2 if passed > most else 7 / 8 if passed > plenty else 1.0
    return min(max(float(margin) * change, MIN_MARGIN_OCTAVES), MAX_MARGIN_OCTAVES)


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
