"""Clipping a gradient by its norm."""

from __future__ import annotations

import math

from sparse_mpi.arrays import Array

CHUNK = 1 << 17  # elements widened at a time: float64 that stays in the cache


def l2_norm(x: Array) -> float:
    """The Euclidean norm of ``x`` ``(n,)``, added up in float64 in an order that depends on n alone."""
    total = 0.0
    for start in range(0, len(x), CHUNK):
        wide = x[start : start + CHUNK].astype("float64")
        wide *= wide
        total += float(wide.sum())
    return math.sqrt(total)


def clip(gradient: Array, most: float) -> Array:
    """``gradient`` ``(n,)``, scaled to a norm of ``most`` if it is longer: then a new array, else itself.

    A gradient whose norm is not finite stays as it is, so that what is wrong with it shows in the sum.
    """
    norm = l2_norm(gradient)
    return gradient * (most / norm) if most < norm < math.inf else gradient
