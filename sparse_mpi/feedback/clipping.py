"""Clip a gradient by its L2 norm."""

from __future__ import annotations

import math

from sparse_mpi.arrays import Array

CHUNK_ELEMENTS = 1 << 17  # elements converted to float64 at a time, few enough to stay in the cache


def l2_norm(x: Array) -> float:
    """Return the Euclidean norm of ``x`` ``(n,)``, added up in float64 in an order that depends on n alone."""
    total = 0.0
    for start in range(0, len(x), CHUNK_ELEMENTS):
        wide = x[start : start + CHUNK_ELEMENTS].astype("float64")
        wide *= wide
        total += float(wide.sum())
    return math.sqrt(total)


def clip(gradient: Array, max_norm: float) -> Array:
    """Return ``gradient`` ``(n,)`` scaled down to ``max_norm``: a new array if its norm is larger, else itself.

    A gradient whose norm is not finite is returned unchanged, so that NaN and Inf still show in the sum.
    """
    norm = l2_norm(gradient)
    return gradient * (max_norm / norm) if max_norm < norm < math.inf else gradient
