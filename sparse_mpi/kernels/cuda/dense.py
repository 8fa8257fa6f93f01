"""Passes over dense vectors that keep their length: adding a gradient, rounding, subtracting what was sent."""

from __future__ import annotations

import cupy
import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.cuda.program import blocks_for, kernel, start


def accumulate(residual: Array, gradient: Array) -> None:
    """See `base.Kernels.accumulate`. CuPy's own addition would take subnormal numbers for zero."""
    if residual.size:
        accumulated = kernel("accumulate", "accumulate.cu", REAL=residual.dtype.name, GRADIENT=gradient.dtype.name)
        start(accumulated, blocks_for(residual.size), residual, cupy.ascontiguousarray(gradient), residual.size)


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    """See `base.Kernels.to_bfloat16`."""
    x, codes = cupy.ascontiguousarray(x), cupy.empty(x.size, np.uint16)
    if x.size:
        rounded = kernel("to_bfloat16", "dense.cu", REAL=x.dtype.name)
        start(rounded, blocks_for(x.size), x, x.size, codes, np.uintp(0) if back is None else back)
    return codes


def subtract_dense(x: Array, values: Array) -> None:
    """See `base.Kernels.subtract_dense`."""
    if x.size:
        subtracted = kernel("subtract_dense", "dense.cu", REAL=x.dtype.name)
        values = cupy.ascontiguousarray(values.astype(x.dtype, copy=False))
        start(subtracted, blocks_for(x.size), x, values, x.size)
