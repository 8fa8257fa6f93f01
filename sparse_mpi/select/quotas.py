"""Selection by quotas: equally many entries from each part of the vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.kernels.parts import EqualParts
from sparse_mpi.select.base import Selector


class Shares(NamedTuple):
    parts: EqualParts
    thresholds: Array  # magnitude bits (V,), int64: of the step before, and of this one afterwards


class PartEntries(NamedTuple):
    """Entries in messages, ready to be sent."""

    rows: Array  # (P, length) uint8, one for each owner, see `kernels.parts`
    parts: EqualParts
    real: np.dtype

    @property
    def nnz(self) -> int:
        return self.parts.number * self.parts.quota

    @property
    def indices(self) -> Array:
        """Return the indices in the vector, in the order of parts; places behind its end have none."""
        places, _ = self.parts.opened(self.rows, self.real)
        found = self.parts.indices(places.reshape(self.parts.number, -1)).reshape(-1)
        return found[found < self.parts.size]


@dataclass(frozen=True)
class Quotas(Selector):
    """The q largest of each part, zeros included, as `PartEntries`: `algorithms.Quota` names the parts."""

    def select(self, x: Array, k: int, state: Shares, add: Array | None = None) -> tuple[Any, Shares]:
        rows = kernels.of(x).select_parts(x, state.parts, state.thresholds, add)
        return PartEntries(rows, state.parts, x.dtype), state
