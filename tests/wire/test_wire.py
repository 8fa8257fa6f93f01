"""The message format: no byte more than a pair needs, and nothing lost on the way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sparse_mpi import wire
from sparse_mpi.arrays import index_dtype
from sparse_mpi.sparse import SparseVector

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize(("size", "dtype"), [*((1000, dtype) for dtype in DTYPES), (2**31, np.float32)])
def test_pairs_come_back_in_memory_of_their_own_and_take_no_byte_more(size, dtype):
    """Long vectors have wide indices."""
    rng, each = np.random.default_rng(0), (4 if size < 2**31 else 8) + np.dtype(dtype).itemsize
    for nnz in (0, 1, 2, 7, 1000):
        indices = np.sort(rng.choice(1000, nnz, replace=False)).astype(index_dtype(size))
        sent = SparseVector(indices, rng.standard_normal(nnz).astype(dtype), size)
        rows = wire.encode(sent)
        assert rows.flags.c_contiguous and rows.nbytes == nnz * each == nnz * wire.pair_bytes(size, dtype)
        back = wire.decode(rows, size, dtype)
        assert back.indices.tobytes() == indices.tobytes() and back.values.tobytes() == sent.values.tobytes()
        assert (back.indices.dtype, back.values.dtype, back.size) == (indices.dtype, dtype, size)
        assert not np.shares_memory(back.values, rows)
