"""The k largest magnitudes, by sorting all of them."""

from dataclasses import dataclass

import numpy as np

from sparse_mpi.select import Selector
from sparse_mpi.sparse import SparseVector


@dataclass(frozen=True)
class Sorted(Selector):
    def select(self, x, k, state, add=None):
        if add is not None:
            x += add.astype(x.dtype)
        magnitudes = np.where(np.isnan(x), np.inf, np.abs(x))
        first = np.argsort(-magnitudes, kind="stable")[:k]
        indices = np.sort(first[x[first] != 0]).astype(np.int32)
        return SparseVector(indices, x[indices], len(x)), state
