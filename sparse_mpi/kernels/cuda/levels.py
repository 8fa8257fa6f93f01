"""Values in eight, four or two bits on a device: blocks of threads for blocks of values."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.base import SCALED, code_places
from sparse_mpi.kernels.cuda.program import kernel, start


def to_int8(x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
    """See `base.Kernels.to_int8`."""
    codes, scales = cupy.empty(x.size, np.int8), cupy.empty(len(edges) - 1, np.float32)
    given = cupy.ascontiguousarray(x), cupy.ascontiguousarray(indices), cupy.asarray(edges)
    _start("to_int8", scales.size, *given, codes, scales, index=indices.dtype)
    return codes, scales


def from_int8(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    """See `base.Kernels.from_int8`."""
    x = cupy.empty(codes.size, np.float32)
    _start("from_int8", scales.size, codes, scales, cupy.asarray(edges), x)
    return x


def to_int4(x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
    """See `base.Kernels.to_int4`."""
    places = code_places(edges, 4)
    codes, scales = cupy.empty(int(places[-1]), np.uint8), cupy.empty(len(edges) - 1, np.float32)
    given = cupy.ascontiguousarray(x), cupy.ascontiguousarray(indices), *_both(edges, places)
    _start("to_int4", scales.size, *given, codes, scales, index=indices.dtype)
    return codes, scales


def to_int2(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    """See `base.Kernels.to_int2`."""
    places = code_places(edges, 2)
    codes, scales = cupy.empty(int(places[-1]), np.uint8), cupy.empty(len(edges) - 1, np.float32)
    _start("to_int2", scales.size, cupy.ascontiguousarray(x), *_both(edges, places), codes, scales)
    return codes, scales


def from_levels(codes: Array, scales: Array, edges: np.ndarray, bits: int) -> Array:
    """See `base.Kernels.from_levels`."""
    x = cupy.empty(int(edges[-1]), np.float32)
    _start("from_levels", scales.size, codes, scales, *_both(edges, code_places(edges, bits)), bits, x)
    return x


def _both(edges: np.ndarray, places: np.ndarray) -> Array:
    """Copy where the values and where the codes of each block begin to the device, in one copy ``(2, b + 1)``."""
    return cupy.asarray(np.stack([edges, places]))


def _start(name: str, blocks: int, *arguments: Any, index: Any = np.int32) -> None:
    """Start a kernel of levels.cu, on so many blocks of values, if there are any."""
    if blocks:
        levels = kernel(name, "levels.cu", SCALED, REAL="float32", INDEX=np.dtype(index).name)
        start(levels, blocks, *arguments, threads=SCALED)
