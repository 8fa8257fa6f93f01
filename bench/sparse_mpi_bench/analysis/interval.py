"""Means with their confidence intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval, by Student's t."""

    mean: float
    half: float  # half of its width; NaN from a single value

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        from scipy.stats import t as student

        if len(values) < 2:
            return Interval(statistics.mean(values), float("nan"))
        error = statistics.stdev(values) / len(values) ** 0.5
        return Interval(statistics.mean(values), float(student.ppf(0.975, len(values) - 1)) * error)

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.half:.4f}"
