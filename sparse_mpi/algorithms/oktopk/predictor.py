"""Prediction of the next step's global threshold: the last one, moved on by its trend.

All arithmetic is on whole numbers, so that every rank predicts the same threshold whatever its processor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class ThresholdPredictor:
    """A linear predictor of the magnitude bits that about 0.95k entries will reach; it is equal on all ranks."""

    bits: int = 0  # the prediction, as magnitude bits
    trend: int = 0  # change of the threshold, in bits a step
    spacing: int = 0  # bits from one candidate threshold to the next: about 0.07k entries; 0 before the first step

    def candidates(self, number: int, top: int) -> np.ndarray:
        """Return up to ``number`` candidate thresholds, as many below the prediction as above it.

        Args:
            number: candidates wanted; those that coincide after clipping count once.
            top: the magnitude bits that every candidate stays below.

        Returns:
            ``(m,)`` int64, ascending, in ``[0, top)``.
        """
        candidates = self.bits + self.spacing * (2 * np.arange(number) - number + 1) // 2
        return np.unique(np.clip(candidates, 0, top - 1))

    def respaced(self, candidates: np.ndarray, totals: np.ndarray, k: int, octave: int) -> ThresholdPredictor:
        """Return the predictor with a spacing that puts about 0.07k entries between two candidates.

        The spacing changes by at most a factor of 4 down or 2 up in a step, and stays between 1/1024 and 1/8 octave.

        Args:
            candidates: ``(m,)`` int64 ascending, the thresholds that were counted in this step.
            totals: ``(m,)`` int64, how many entries of all ranks reach each of them.
            k: entries wanted over all ranks.
            octave: difference in magnitude bits between a number and its double.
        """
        # Between the candidates near k, the spacing follows from the entries that lie between them.
        near = np.flatnonzero((2 * totals > k) & (totals < 2 * k))
        spacing = self.spacing
        if len(near) > 1:
            low, high = near[0], near[-1]
            entries = max(int(totals[low] - totals[high]), 1)
            spacing = 7 * k * int(candidates[high] - candidates[low]) // (100 * entries)
        elif totals[0] > k > totals[-1]:
            spacing = spacing // 4
        # Limit the change, and the spacing itself.
        spacing = min(max(spacing, self.spacing // 4), self.spacing * 2)
        return replace(self, spacing=min(max(spacing, octave >> 10), octave >> 3))

    def updated(self, bits: int, octave: int) -> ThresholdPredictor:
        """Return the predictor for the next step, after this step's threshold turned out to be ``bits``.

        Three quarters of the error go into the trend, which is limited to a quarter of an octave a step.
        """
        if not self.spacing:
            return ThresholdPredictor(bits, 0, octave >> 7)
        trend = self.trend + 3 * (bits - self.bits) // 4
        trend = min(max(trend, -octave // 4), octave // 4)
        return replace(self, bits=max(bits + trend, 0), trend=trend)


def crossing(candidates: np.ndarray, totals: np.ndarray, target: int) -> int:
    """Return the magnitude bits that ``target`` entries would reach, interpolated between the two nearest candidates.

    Outside the range of the candidates it is the first or the last of them.

    Args:
        candidates: ``(m,)`` int64 ascending magnitude bits.
        totals: ``(m,)`` int64 descending, how many entries of all ranks reach each candidate.
        target: the number of entries to interpolate for.
    """
    above = int(np.searchsorted(-totals, -target))
    if above in (0, len(candidates)):
        return int(candidates[min(above, len(candidates) - 1)])
    low, high = candidates[above - 1 : above + 1].tolist()
    more, fewer = totals[above - 1 : above + 1].tolist()
    return low + (high - low) * (more - target) // (more - fewer)
