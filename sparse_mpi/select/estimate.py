"""Selection by an estimate of the k-th magnitude: one pass if the estimate is good, exact top-k if it is not.

The published estimates miss k by a factor of 5 to 50 on distributions they were not made for. Here each is tried, and
its selection is used only where the count lies in the selector's band.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse_mpi.arrays import Array, bits_type
from sparse_mpi.select.base import NOT_ZERO, at_least
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import SparseVector


class Attempt(NamedTuple):
    """The outcome of one selection pass with an estimated threshold."""

    selected: SparseVector | None  # the entries that reach it, if their number is in the band
    reached: int  # how many reach it; one more than the band allows if they are too many


def attempt(x: Array, threshold: float, k: int, band: tuple[float, float]) -> Attempt:
    """Select the entries of ``x`` ``(n,)`` whose magnitude reaches ``threshold``, in one pass.

    Where k = n everything is selected, whatever the threshold, but for zeros, which never are.

    Args:
        x: ``(n,)``.
        threshold: any number, NaN and Inf included.
        k: entries wanted.
        band: the fewest and the most entries that are acceptable, as multiples of k.
    """
    most = max(k, int(band[1] * k))
    passed = at_least(x, max(bits_of(threshold, x), NOT_ZERO) if k < len(x) else NOT_ZERO, most)
    if passed is None:
        return Attempt(None, most + 1)
    return Attempt(passed if passed.nnz >= band[0] * k else None, passed.nnz)


def settle(tried: Attempt, x: Array, k: int) -> SparseVector:
    """Return what the last attempt selected, or else the k largest entries of ``x`` ``(n,)``, without zeros."""
    return largest(x, k) if tried.selected is None else tried.selected


def bits_of(threshold: float, x: Array) -> int:
    """Return the magnitude bits of a threshold in the dtype of ``x``, from 0 to those of NaN.

    A negative threshold becomes 0, and one that is too large for the dtype becomes Inf.
    """
    kind = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        return int(np.abs(kind(max(threshold, 0.0))).view(bits_type(x)))
