"""Seconds measured at a few sizes -> `Cost`, a straight line without negative parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse_mpi.least_squares import nonnegative
from sparse_mpi.plan.base import Cost


def fit(elements: Sequence[float], entries: Sequence[float], seconds: Sequence[float]) -> Cost:
    """The `Cost` nearest to the measured ``seconds``, in relative error, none of whose coefficients is negative."""
    columns = np.column_stack([np.ones(len(seconds)), elements, entries])
    return Cost(*(float(value) for value in nonnegative(columns, seconds)))
