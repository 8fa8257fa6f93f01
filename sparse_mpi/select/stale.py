"""The published rule of Ok-Topk (Li & Hoefler, PPoPP'22) for a threshold: exact now and then, stale in between.

Both thresholds of the paper follow it: the local one that selects (`select/threshold.py`) and the global one that cuts
the sums (`algorithms/global_threshold.py`). They differ in the constants of the published program, which raises
only the local one before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

FEWEST = Fraction(2, 3)  # times k: a stale threshold that fewer entries reach is lowered
RAISE = 1.03  # the factor by which the published program raises a threshold before it selects
MAX_RAISES = 5  # in a step


@dataclass(frozen=True)
class StaleRule:
    """Controller of a threshold that is exact every ``period`` steps and corrected by a small factor in between.

    Args:
        period: steps between exact thresholds (tau' in the paper).
        nudge: the factor above 1 by which a threshold is lowered or raised after a step whose count was off.
        most: times k: a stale threshold that more entries reach is raised.
    """

    period: int
    nudge: float
    most: Fraction

    def refresh_due(self, age: int, k: int, last_k: int) -> bool:
        """Return True if this step needs an exact threshold: one is due, or ``last_k`` entries were wanted, not k."""
        return age % self.period == 0 or k != last_k

    def nudged(self, bits: int, count: int, k: int, dtype: np.dtype) -> int:
        """Return the magnitude bits to use in the next step, after ``count`` entries reached ``bits`` in this one.

        Args:
            bits: magnitude bits of the threshold of this step.
            count: entries that reached it.
            k: entries wanted.
            dtype: float32 or float64, of the numbers whose magnitudes these are.
        """
        threshold = _value_of(bits, dtype)
        if count < FEWEST * k:
            threshold = threshold / self.nudge
        elif count > self.most * k:
            threshold = threshold * self.nudge
        return int(_bits_of(threshold.astype(dtype)))

    def raised(self, bits: int, dtype: np.dtype) -> np.ndarray:
        """Return the magnitude bits of the stale threshold and of those it may be raised to, ``(6,)`` ascending."""
        with np.errstate(over="ignore"):
            thresholds = (_value_of(bits, dtype) * RAISE ** np.arange(MAX_RAISES + 1)).astype(dtype)
        return np.maximum.accumulate(_bits_of(thresholds))  # NaN and Inf stay what they are

    def first_in_bounds(self, raised: np.ndarray, counts: np.ndarray, k: int) -> int:
        """Return the lowest of the ``raised`` thresholds that are not reached by too many entries, or the highest.

        Args:
            raised: magnitude bits, ascending.
            counts: how many entries reach each of them.
            k: entries wanted.
        """
        found = np.flatnonzero(counts <= self.most * k)
        return int(raised[found[0] if len(found) else -1])


def _value_of(bits: int, dtype: np.dtype) -> np.ndarray:
    """Return the magnitude, of type ``dtype``, that has these bits."""
    return np.array(bits, f"int{8 * dtype.itemsize}").view(dtype)


def _bits_of(magnitudes: np.ndarray) -> np.ndarray:
    """Return the bits of ``magnitudes`` as integers."""
    return magnitudes.view(f"int{8 * magnitudes.itemsize}")
