"""Gaussian selection (Shi et al., "Understanding Top-k Sparsification", 2019): a threshold from mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.select.base import at_least
from sparse_mpi.sparse import Layout, NoState, SparseVector, truncate


@dataclass(frozen=True)
class Gaussian:
    """Entries beyond mean + sigma * Phi^-1(1 - density / 2), corrected by a histogram when they are too few or many.

    The published corrections (x0.5 and x1.5, at most five) leave it at 0.2 % instead of 1 % on a Laplace
    distribution; here a count outside [2k/3, 4k/3] makes a histogram set the threshold instead.
    """

    band: ClassVar[tuple[float, float]] = (2 / 3, 4 / 3)

    def init(self, layout: Layout, k: int) -> NoState:
        """Nothing to remember."""
        return NoState()

    def select(self, x: Array, k: int, state: NoState) -> tuple[SparseVector, NoState]:
        """Between 2k/3 and 4k/3 entries of ``x`` ``(n,)``."""
        most = max(k, 4 * k // 3)
        with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN end in the histogram below
            mean, square = float(x.mean()), float(x.dot(x)) / len(x)
            sigma = sqrt(max(square - mean * mean, 0.0))
        guess = mean + sigma * NormalDist().inv_cdf(1 - k / len(x) / 2)
        bits = int(x.dtype.type(max(guess, 0.0)).view(np.dtype(f"int{8 * x.itemsize}")))
        passed = at_least(x, bits if k < len(x) else 0, most)
        if passed is None or 3 * passed.nnz < 2 * k:
            passed = at_least(x, kernels.kth_magnitude(x, k, most), most=len(x))
            assert passed is not None
        return (passed if passed.nnz <= most else truncate(passed, k)), state
