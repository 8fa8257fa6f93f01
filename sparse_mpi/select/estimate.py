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

    selected: SparseVector | None  # what reaches the threshold, if it is as many entries as the band allows
    reached: int  # how many that are, or one more than the band allows if they are too many


def attempt(x: Array, threshold: float, k: int, band: tuple[float, float]) -> Attempt:
    """Select the entries of ``x`` ``(n,)`` whose magnitude reaches ``threshold``, any number, NaN and Inf included.

    Where k = n everything is selected, whatever the threshold.
    """
    most = max(k, int(band[1] * k))
    passed = at_least(x, bits_of(threshold, x) if k < len(x) else 0, most)
    if passed is None:
        return Attempt(None, most + 1)
    return Attempt(passed if passed.nnz >= band[0] * k else None, passed.nnz)


def settle(tried: Attempt, x: Array, k: int) -> SparseVector:
    """What the last attempt selected, or else the k largest entries of ``x``."""
    return top_k(x, k) if tried.selected is None else tried.selected


def bits_of(threshold: float, x: Array) -> int:
    """In ``[0, bits of NaN]``: 0 for what is negative, the bits of Inf for what is too large for the dtype of ``x``."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        return int(np.abs(kind(max(threshold, 0.0))).view(bits_type(x)))
