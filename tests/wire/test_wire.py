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


@pytest.mark.parametrize("dtype", DTYPES)
def test_messages_one_after_the_other_decode_at_once(dtype):
    parts = [vector(dtype, nnz) for nnz in (3, 0, 5)]
    both = wire.decode(np.concatenate([wire.encode(p) for p in parts]), 1000, dtype)
    assert both.indices.tolist() == [i for p in parts for i in p.indices]
    assert both.values.tobytes() == b"".join(p.values.tobytes() for p in parts)


def test_long_vectors_have_wide_indices():
    v = vector(np.float32, 5, size=2**31)
    assert wire.encode(v).nbytes == 5 * 12 == 5 * wire.pair_bytes(2**31, np.float32)
    assert wire.decode(wire.encode(v), 2**31, np.float32).indices.dtype == np.int64


def test_nan_payload_and_negative_zero_survive():
    values = np.array([0x7FC12345, 0x80000000], np.uint32).view(np.float32)
    v = SparseVector(np.array([0, 1], np.int32), values, 2)
    assert wire.decode(wire.encode(v), 2, np.float32).values.tobytes() == values.tobytes()


def test_what_is_decoded_is_its_own_memory():
    rows = wire.encode(vector(np.float32, 1))
    assert not np.shares_memory(wire.decode(rows, 1000, np.float32).values, rows)
