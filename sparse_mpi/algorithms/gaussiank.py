"""GaussianK (Shi et al., "Understanding Top-k Sparsification", 2019): TopkA with the Gaussian selector.

Costs 2k(P-1) words, up to a third more where the selector overshoots, and ceil(log2 P) messages a rank, and as many
small ones for the counts. Returns the sum of all selections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sparse_mpi.algorithms.base import Traits
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.select import Selector
from sparse_mpi.select.estimate import Gaussian


@dataclass(frozen=True)
class GaussianK(TopkA):
    """Allgather the entries that lie beyond a Gaussian's quantile, and add them up."""

    selector: Selector = Gaussian()

    @cached_property
    def traits(self) -> Traits:
        """Return `TopkA`'s traits, except default plans and the same result on all devices.

        BLAS adds the threshold's squares in float32 with an error of 2e-5: one entry in some thousands differs.
        """
        return replace(super().traits, in_default_plans=False, device_difference=0.05)
