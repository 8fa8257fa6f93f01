"""Feedback rules: they decide what becomes of the gradient entries that a step did not send. `FEEDBACKS` names them."""

from __future__ import annotations

import warnings
from typing import Any

from sparse_mpi.feedback.base import Feedback
from sparse_mpi.feedback.global_momentum import GlobalMomentum
from sparse_mpi.feedback.leaky import LeakyFeedback
from sparse_mpi.feedback.momentum import MomentumCorrection
from sparse_mpi.feedback.nothing import NoFeedback
from sparse_mpi.feedback.residual import ErrorFeedback

FEEDBACKS: dict[str, type] = {
    "residual": ErrorFeedback,
    "dgc": MomentumCorrection,
    "gmc": GlobalMomentum,
    "leaky": LeakyFeedback,
    "none": NoFeedback,
}

__all__ = [
    "FEEDBACKS",
    "ErrorFeedback",
    "Feedback",
    "GlobalMomentum",
    "LeakyFeedback",
    "MomentumCorrection",
    "NoFeedback",
]

FORMER = {"MEMORIES": "FEEDBACKS", "Memory": "Feedback"}  # names of release 0.1, deprecated


def __getattr__(name: str) -> Any:
    """Return what a deprecated name of this module stands for today, with a warning."""
    if name not in FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is deprecated: write {FORMER[name]}", DeprecationWarning, stacklevel=2)
    return globals()[FORMER[name]]
