"""Where the next step's global threshold will lie: on from the last one, as it has moved so far.

In whole numbers, so that all ranks, whatever their processors, forecast the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Forecast:
    """Magnitude bits that about 0.95k entries will reach."""

    bits: int = 0
    trend: int = 0  # bits a step
    spacing: int = 0  # bits from probe to probe: about 0.07k entries; 0 before the first step

    def probes(self, number: int, top: int) -> np.ndarray:
        """Up to ``number`` probes, ascending, in ``[0, top)``, as many below the forecast as above."""
        probes = self.bits + self.spacing * (2 * np.arange(number) - number + 1) // 2
        return np.unique(np.clip(probes, 0, top - 1))

    def spaced(self, probes: np.ndarray, totals: np.ndarray, k: int, octave: int) -> Forecast:
        """The same with probes farther apart or closer, after ``totals`` entries were seen to reach each."""
        near = np.flatnonzero((2 * totals > k) & (totals < 2 * k))
        spacing = self.spacing
        if len(near) > 1:
            low, high = near[0], near[-1]
            spacing = 7 * k * int(probes[high] - probes[low]) // (100 * max(int(totals[low] - totals[high]), 1))
        elif totals[0] > k > totals[-1]:
            spacing = spacing // 4
        spacing = min(max(spacing, self.spacing // 4), self.spacing * 2)
        return replace(self, spacing=min(max(spacing, octave >> 10), octave >> 3))

    def moved(self, bits: int, octave: int) -> Forecast:
        """The next forecast, after the threshold turned out to be ``bits``."""
        if not self.spacing:
            return Forecast(bits, 0, octave >> 7)
        trend = self.trend + 3 * (bits - self.bits) // 4
        trend = min(max(trend, -octave // 4), octave // 4)
        return replace(self, bits=max(bits + trend, 0), trend=trend)


def crossing(probes: np.ndarray, totals: np.ndarray, aim: int) -> int:
    """Where ``aim`` entries would be reached, between the two probes about it; the nearest probe if there are none."""
    above = int(np.searchsorted(-totals, -aim))
    if above in (0, len(probes)):
        return int(probes[min(above, len(probes) - 1)])
    (low, high), (more, fewer) = probes[above - 1 : above + 1].tolist(), totals[above - 1 : above + 1].tolist()
    return low + (high - low) * (more - aim) // (more - fewer)
