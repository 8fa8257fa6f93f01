"""Sparse data of every kind that may be on a device: in host memory, there, and the arrays that it is made of."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from sparse_mpi import SparseVector

scipy = pytest.importorskip("scipy")  # a machine with a GPU need not have it
SHAPE = (30, 40)


def cupy():
    return sys.modules["cupy"]


def host_matrix(rank, form):
    made = scipy.sparse.random(*SHAPE, 0.1, form, np.float32, np.random.default_rng(rank))
    made.data = np.round(made.data * 8)
    return made


def host_pair(rank, dtype=np.float64, shape=(), keys=np.int64):
    rng = np.random.default_rng(rank)
    return rng.integers(0, 50, 20).astype(keys), (rng.standard_normal((20, *shape)) * 9).astype(dtype)


def host_vector(rank):
    indices = np.flatnonzero(np.random.default_rng(rank).random(100) < 0.2).astype(np.int32)
    return SparseVector(indices, indices.astype(np.float32) / 2, 100)


def host_tensor(rank, layout):
    if layout == "blocks":  # as the gradient of an embedding: rows, some of them twice
        keys, values = host_pair(rank, shape=(7,))
        return torch.sparse_coo_tensor(torch.from_numpy(keys)[None], torch.from_numpy(values.round()), (50, 7))
    coo = torch.from_numpy(host_matrix(rank, "coo").toarray()).to_sparse()
    return coo.to_sparse_csr() if layout == "csr" else coo


HOST = {
    "SparseVector": host_vector,
    "pair": host_pair,
    "pair of blocks": lambda rank: host_pair(rank, np.float32, (2, 3)),
    "pair of complex": lambda rank: host_pair(rank, np.complex128, (), np.uint64),
    "pair of bool": lambda rank: host_pair(rank, np.bool_, (), np.int32),
    "coo": lambda rank: host_matrix(rank, "coo"),
    "csr": lambda rank: host_matrix(rank, "csr"),
    "csc": lambda rank: host_matrix(rank, "csc"),
    "torch coo": lambda rank: host_tensor(rank, "coo"),
    "torch blocks": lambda rank: host_tensor(rank, "blocks"),
    "torch csr": lambda rank: host_tensor(rank, "csr"),
    "vector of tensors": host_vector,
    "pair of tensors": lambda rank: host_pair(rank, np.int64, (3,)),
    "pair of flags": lambda rank: host_pair(rank, np.bool_),
}
KINDS = [*HOST]
OF_TORCH = KINDS[KINDS.index("torch coo") :]


def parts_of(x):
    """The arrays of which anything here is made."""
    if isinstance(x, tuple):
        return x[:2]
    if isinstance(x, torch.Tensor):
        coo = x.layout == torch.sparse_coo
        return (x._indices(), x._values()) if coo else (x.crow_indices(), x.col_indices(), x.values())
    return (x.row, x.col, x.data) if x.format == "coo" else (x.indptr, x.indices, x.data)


def put(kind, x):
    """On the device, in the library that ``kind`` is of."""
    there = (lambda a: torch.as_tensor(a).cuda()) if kind in OF_TORCH else lambda a: cupy().asarray(a)
    if isinstance(x, SparseVector):
        return SparseVector(there(x.indices), there(x.values), x.size)
    if isinstance(x, tuple):
        return tuple(map(there, x))
    if isinstance(x, torch.Tensor):
        make = torch.sparse_coo_tensor if x.layout == torch.sparse_coo else torch.sparse_csr_tensor
        return make(*map(there, parts_of(x)), tuple(x.shape))
    return getattr(sys.modules["cupyx.scipy.sparse"], f"{x.format}_matrix")(x)


def fetched(a):
    """As a NumPy array."""
    if isinstance(a, torch.Tensor):
        return a.cpu().numpy()
    return a if isinstance(a, np.ndarray) else a.get()


def on_device(a):
    return a.is_cuda if isinstance(a, torch.Tensor) else isinstance(a, cupy().ndarray)


def bytes_of(x):
    return [(part.dtype.str, part.shape, part.tobytes()) for part in map(fetched, parts_of(x))]
