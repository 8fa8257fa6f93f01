"""Exact top-k in one selection pass, or a histogram pass and one: a sort or a heap would need many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.select.base import at_least
from sparse_mpi.sparse import Layout, NoState, SparseVector, truncate


def top_k(x: Array, k: int) -> SparseVector:
    """The k entries of ``x`` ``(n,)`` of largest magnitude; of equal ones those of lower index.

    A sample, or else a histogram, finds a threshold that little more than k entries pass, and only those are ordered.
    """
    found = kernels.candidates(x, k)
    if found is not None:
        return truncate(SparseVector(*found, len(x)), k)
    passed = at_least(x, kernels.kth_magnitude(x, k, most=k + k // 4), most=len(x))
    assert passed is not None
    return truncate(passed, k)


@dataclass(frozen=True)
class Exact:
    """The k largest magnitudes, of equal ones those of lower index."""

    band: ClassVar[tuple[float, float]] = (1.0, 1.0)

    def init(self, layout: Layout, k: int) -> NoState:
        """Nothing to remember."""
        return NoState()

    def select(self, x: Array, k: int, state: NoState) -> tuple[SparseVector, NoState]:
        """Exactly k entries of ``x`` ``(n,)``."""
        return top_k(x, k), state
