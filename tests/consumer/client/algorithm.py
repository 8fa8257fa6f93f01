"""An algorithm and a selector of one's own, from CONTRIBUTING.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_mpi import Layout, SparseAllreduce, SparseVector
from sparse_mpi.algorithms import Algorithm, Bound, Reduction
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm, NullComm
from sparse_mpi.select import Selector


@dataclass(frozen=True)
class Sum(Algorithm):
    def init(self, layout: Layout, k: int, ranks: int) -> None:
        return None

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: Any, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, None]:
        return Reduction(comm.allreduce(acc), acc.copy()), None

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        return Bound(0, 2 * layout.size, 2 * ranks, 0)


@dataclass(frozen=True)
class First(Selector):
    """The first k entries, whatever they are."""

    def init(self, layout: Layout, k: int) -> None:
        return None

    def select(self, x: Array, k: int, state: None, add: Array | None = None) -> tuple[SparseVector, None]:
        x += 0 if add is None else add
        return SparseVector(np.arange(k, dtype=np.int32), x[:k].copy(), len(x)), None


def main() -> float:
    reducer = SparseAllreduce(10, k=3, comm=NullComm(), algorithm=Sum())
    total = reducer.step(np.ones(10, np.float32))
    return float((total.to_dense() if isinstance(total, SparseVector) else total).sum())
