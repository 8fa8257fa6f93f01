"""Selection by an estimate of the k-th magnitude: one pass if the estimate is good, exact top-k if it is not.

The published estimates miss k by a factor of 5 to 50 on distributions they were not made for. Here each is tried, and
kept where the count lies in the selector's band.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import bits_type
from sparse_mpi.select.base import at_least
from sparse_mpi.select.exact import top_k
from sparse_mpi.sparse import SparseVector


class Attempt(NamedTuple):
    """What one pass with an estimated threshold found."""

    passed: SparseVector | None  # the entries that reach the threshold; None if they are more than the band allows
    fits: bool  # whether they are as many as the band allows


def attempt(x: Array, threshold: float, k: int, band: tuple[float, float]) -> Attempt:
    """Select the entries of ``x`` ``(n,)`` whose magnitude reaches ``threshold``, any number, NaN and Inf included.

    Where k = n everything is selected, whatever the threshold.
    """
    bits = bits_of(threshold, x) if k < len(x) else 0
    passed = at_least(x, bits, most=most_in(band, k))
    return Attempt(passed, passed is not None and passed.nnz >= band[0] * k)


def settle(tried: Attempt, x: Array, k: int) -> SparseVector:
    """What the last attempt selected if it fits, else the k largest entries of ``x``."""
    return tried.passed if tried.passed is not None and tried.fits else top_k(x, k)


def most_in(band: tuple[float, float], k: int) -> int:
    """The most entries that a band allows: at least k."""
    return max(k, int(band[1] * k))


def bits_of(threshold: float, x: Array) -> int:
    """In ``[0, bits of NaN]``: 0 for what is negative, the bits of Inf for what is too large for the dtype of ``x``."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        return int(np.abs(kind(max(threshold, 0.0))).view(bits_type(x)))
