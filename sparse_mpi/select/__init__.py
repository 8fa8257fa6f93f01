"""Selectors: which entries of a dense vector are worth sending. `SELECTORS` names them."""

from __future__ import annotations

from sparse_mpi.checks import Registry
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.base import Selector
from sparse_mpi.select.estimate import DGC, Gaussian, RedSync, RedSyncTrim
from sparse_mpi.select.exact import Exact
from sparse_mpi.select.interleaved import Interleaved
from sparse_mpi.select.random import Random
from sparse_mpi.select.sidco import SIDCoExp, SIDCoGamma, SIDCoGP
from sparse_mpi.select.threshold import Threshold

SELECTORS = Registry(
    "selector",
    {
        "exact": Exact,
        "threshold": Threshold,
        "gaussiank": Gaussian,
        "dgc": DGC,
        "redsync": RedSync,
        "redsync-trim": RedSyncTrim,
        "sidco-exp": SIDCoExp,
        "sidco-gp": SIDCoGP,
        "sidco-gamma": SIDCoGamma,
        "random": Random,
        "alldim": AllDim,
        "interleaved": Interleaved,
    },
)

__all__ = [
    "DGC",
    "SELECTORS",
    "AllDim",
    "Exact",
    "Gaussian",
    "Interleaved",
    "Random",
    "RedSync",
    "RedSyncTrim",
    "SIDCoExp",
    "SIDCoGP",
    "SIDCoGamma",
    "Selector",
    "Threshold",
]
