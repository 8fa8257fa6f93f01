"""Straight lines through measured seconds, without negative parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

LEAST = 1e-6  # seconds; what is shorter is measured no better than this


def nonnegative(columns: Sequence[Sequence[float]] | np.ndarray, seconds: Sequence[float]) -> np.ndarray:
    """``(m,)`` coefficients, none negative, with which ``columns`` (points, m) come nearest to ``seconds``, relatively.

    Least squares over every subset of the coefficients; of those without a negative one the best is taken.
    """
    measured, columns = np.asarray(seconds, np.float64), np.asarray(columns, np.float64)
    count = columns.shape[1]
    weights = 1 / np.maximum(measured, LEAST)
    scale = columns.max(axis=0, initial=0)
    scale[scale == 0] = 1
    system, target = columns / scale * weights[:, None], measured * weights
    best, least = np.zeros(count), float(target @ target)
    for chosen in (list(subset) for some in range(1, count + 1) for subset in combinations(range(count), some)):
        found, *_ = np.linalg.lstsq(system[:, chosen], target, rcond=None)
        error = float(((system[:, chosen] @ found - target) ** 2).sum())
        if (found >= 0).all() and error < least * (1 - 1e-9):
            best, least = np.zeros(count), error
            best[chosen] = found
    return best / scale
