"""The published rule of Ok-Topk (Li & Hoefler, PPoPP'22) for a threshold: exact now and then, stale in between.

Both thresholds of the paper follow it: the local one that selects (`select/threshold.py`) and the global one that cuts
the sums (`algorithms/oktopk/stale_threshold.py`). They differ in the constants of the published program.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

FEWEST = Fraction(2, 3)  # times k: a stale threshold that fewer entries reach is lowered


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
        threshold = np.array(bits, f"int{8 * dtype.itemsize}").view(dtype)
        if count < FEWEST * k:
            threshold = threshold / self.nudge
        elif count > self.most * k:
            threshold = threshold * self.nudge
        return int(threshold.astype(dtype).view(f"int{8 * dtype.itemsize}"))
