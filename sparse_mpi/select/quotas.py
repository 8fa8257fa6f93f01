"""Selection by quotas: equally many entries from each part of the vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.kernels.parts import EqualParts
from sparse_mpi.select.base import Selector
from sparse_mpi.sparse import SparseVector


class Shares(NamedTuple):
    parts: EqualParts
    thresholds: Array  # magnitude bits (V,), int64: of the step before, and of this one afterwards


@dataclass(frozen=True)
class Quotas(Selector):
    """The q largest of each part, zeros included, by part and place: `algorithms.Quota` names the parts."""

    def select(self, x: Array, k: int, state: Shares, add: Array | None = None) -> tuple[SparseVector, Shares]:
        places, values = kernels.of(x).select_parts(x, state.parts, state.thresholds, add)
        return SparseVector(places.reshape(-1), values.reshape(-1), state.parts.width), state
