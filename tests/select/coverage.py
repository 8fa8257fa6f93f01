"""How many rows a sparse vector reaches."""

from __future__ import annotations

import numpy as np

from sparse_mpi import Layout, SparseVector
from sparse_mpi.arrays import to_host
from sparse_mpi.rows import fewest


def coverage(vector: SparseVector, layout: Layout, rows: str = "output") -> float:
    """The share of rows of matrices in which ``vector`` has an entry."""
    indices = to_host(vector.indices)
    matrices = [t for t in fewest(layout, rows, ()) if len(layout.shapes[t.tensor]) >= 2]
    inside = [indices[(indices >= t.offset) & (indices < t.offset + t.size)] for t in matrices]
    reached = sum(len(np.unique(t.numbers(of))) for t, of in zip(matrices, inside, strict=True))
    return reached / sum(t.rows for t in matrices)
