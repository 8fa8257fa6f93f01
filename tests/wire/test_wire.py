"""The message format: no byte more than a pair needs, and nothing lost on the way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sparse_mpi import wire
from sparse_mpi.arrays import index_dtype
from sparse_mpi.sparse import SparseVector

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def vector(dtype, nnz, size=1000):
    rng = np.random.default_rng(nnz)
    indices = np.sort(rng.choice(1000, nnz, replace=False)).astype(index_dtype(size))
    return SparseVector(indices, rng.standard_normal(nnz).astype(dtype), size)


@pytest.mark.parametrize("nnz", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_and_length(dtype, nnz):
    v = vector(dtype, nnz)
    rows = wire.encode(v)
    assert rows.flags.c_contiguous and rows.nbytes == nnz * (4 + np.dtype(dtype).itemsize)
    back = wire.decode(rows, v.size, dtype)
    assert back.indices.tobytes() == v.indices.tobytes() and back.values.tobytes() == v.values.tobytes()
    assert back.indices.dtype == np.int32 and back.values.dtype == dtype and back.size == v.size


def test_long_vectors_have_wide_indices():
    v = vector(np.float32, 5, size=2**31)
    assert wire.encode(v).nbytes == 5 * 12 == 5 * wire.pair_bytes(2**31, np.float32)
    assert wire.decode(wire.encode(v), 2**31, np.float32).indices.dtype == np.int64


def test_what_is_decoded_is_its_own_memory():
    rows = wire.encode(vector(np.float32, 1))
    assert not np.shares_memory(wire.decode(rows, 1000, np.float32).values, rows)
