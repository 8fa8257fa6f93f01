"""SparseVector <-> one contiguous buffer, ready to be sent. The only file that knows the message format.

A message is a C-contiguous matrix with one row a pair: the index's bytes, then the value's. Rows are what the transport
counts and cuts, so a vector encoded once can be split among all ranks by row counts, and a buffer of several ranks'
messages decodes in one go, into arrays of its own. A float32 pair is 8 bytes, a float64 pair 12, a half-precision pair
6. There is no header.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.sparse import SparseVector


def _unit(dtype: Any) -> np.dtype:
    """The integer type rows are made of: the widest that divides an index and a value."""
    return np.dtype(np.int32 if np.dtype(dtype).itemsize % 4 == 0 else np.int16)


def pair_bytes(size: int, dtype: Any) -> int:
    """Bytes of one (index, value) pair of a vector of length ``size``."""
    return index_dtype(size).itemsize + np.dtype(dtype).itemsize


def encode(vector: SparseVector) -> Array:
    """The message: ``(nnz, w)`` int32 (int16 for half-precision values), C-contiguous, in the vector's library."""
    unit = _unit(vector.values.dtype)
    split = index_dtype(vector.size).itemsize // unit.itemsize
    width = pair_bytes(vector.size, vector.values.dtype) // unit.itemsize
    rows = namespace(vector.values).empty((vector.nnz, width), unit)
    rows[:, :split] = vector.indices.view(unit).reshape(vector.nnz, split)
    rows[:, split:] = vector.values.view(unit).reshape(vector.nnz, width - split)
    return rows


def decode(rows: Array, size: int, dtype: Any) -> SparseVector:
    """The inverse of `encode`, for one message or several in one buffer; ``size`` and ``dtype`` are the vector's."""
    xp = namespace(rows)
    split = index_dtype(size).itemsize // _unit(dtype).itemsize
    indices = xp.array(rows[:, :split], order="C").view(index_dtype(size)).reshape(-1)
    values = xp.array(rows[:, split:], order="C").view(np.dtype(dtype)).reshape(-1)
    return SparseVector(indices, values, size)
