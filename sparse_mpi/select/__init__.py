"""Selectors: which entries of a dense vector are worth sending. `SELECTORS` names them."""

from __future__ import annotations

from sparse_mpi.select.base import Selector
from sparse_mpi.select.exact import Exact
from sparse_mpi.select.gaussian import Gaussian
from sparse_mpi.select.threshold import Threshold

SELECTORS: dict[str, type] = {
    "exact": Exact,
    "threshold": Threshold,
    "gaussiank": Gaussian,
}

__all__ = ["SELECTORS", "Selector"]
