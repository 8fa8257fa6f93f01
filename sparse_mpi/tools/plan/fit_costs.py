"""Fit a `Cost`, linear and without negative coefficients, to seconds measured at a few sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from sparse_mpi.network.fit import MIN_SECONDS
from sparse_mpi.tools.plan.base import Cost


def fit(elements: Sequence[float], entries: Sequence[float], seconds: Sequence[float]) -> Cost:
    """Return the `Cost` without negative coefficients whose relative error at the measured ``seconds`` is least.

    Least squares is solved for every subset of the three coefficients, and the best non-negative solution is taken.
    """
    measured = np.asarray(seconds, np.float64)
    # Weigh by 1 / seconds, for relative errors, and scale the columns, so that the system is well conditioned.
    columns = np.column_stack([np.ones(len(measured)), elements, entries])
    weights = 1 / np.maximum(measured, MIN_SECONDS)
    scale = columns.max(axis=0, initial=0)
    scale[scale == 0] = 1
    system, target = columns / scale * weights[:, None], measured * weights
    best, least = np.zeros(3), float(target @ target)
    for chosen in (list(subset) for count in (1, 2, 3) for subset in combinations(range(3), count)):
        found, *_ = np.linalg.lstsq(system[:, chosen], target, rcond=None)
        error = float(((system[:, chosen] @ found - target) ** 2).sum())
        if (found >= 0).all() and error < least * (1 - 1e-9):
            best, least = np.zeros(3), error
            best[chosen] = found
    return Cost(*(float(value) for value in best / scale))
