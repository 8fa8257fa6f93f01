"""Interleaved selection (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678): all-dimension selection and top-k in turns.

A matrix has the same number of entries either way, the sum of its rows' quotas: tensors, counts and dense tensors are
the same in every step, and plain top-k takes the matrix as a single row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_whole
from sparse_mpi.rows import Pattern, dense_tensors, quotas
from sparse_mpi.select.alldim import AllDim, select_rows
from sparse_mpi.select.base import accumulate
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import ranged


@dataclass(frozen=True)
class _InterleavedState:
    layout: Layout
    step: int = ranged("[0, many)", 0, replicated=True)  # selections made


@dataclass(frozen=True)
class Interleaved(AllDim):
    """Interleaved selection (ADTopk, HPDC'24): each matrix by rows in one step, then by plain top-k in the next.

    Args:
        rows, dense: fields of `AllDim`.
        always_alldim: number of last matrices that stay on all-dimension selection.
    """

    always_alldim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("always_alldim", self.always_alldim, 0, "matrices")

    def init(self, layout: Layout, k: int) -> _InterleavedState:
        super().init(layout, k)
        return _InterleavedState(layout)

    def select(
        self, x: Array, k: int, state: _InterleavedState, add: Array | None = None
    ) -> tuple[SparseVector, _InterleavedState]:
        accumulate(x, add)
        return select_rows(x, self.pattern(k, state)), replace(state, step=state.step + 1)

    def pattern(self, k: int, state: _InterleavedState) -> Pattern:
        return self.longest(state.layout, k) if state.step % 2 else super().pattern(k, state)

    def longest(self, layout: Layout, k: int) -> Pattern:
        # All matrices that take turns are on plain top-k: column numbers in a longer row take more bytes
        turning = self._turning(layout)
        return tuple(t.merged() if t.tensor in turning else t for t in quotas(layout, k, self.rows, self.dense))

    def _turning(self, layout: Layout) -> tuple[int, ...]:
        dense = dense_tensors(layout, self.dense)
        sizes = zip(layout.shapes, layout.sizes, strict=True)
        matrices = [i for i, (shape, size) in enumerate(sizes) if len(shape) >= 2 and size and i not in dense]
        return tuple(matrices[: max(len(matrices) - self.always_alldim, 0)])
