"""Memories: what becomes of what a step did not send. `MEMORIES` names them."""

from __future__ import annotations

from sparse_mpi.feedback.base import Memory
from sparse_mpi.feedback.momentum import MomentumCorrection
from sparse_mpi.feedback.nothing import NoFeedback
from sparse_mpi.feedback.residual import ErrorFeedback

MEMORIES: dict[str, type] = {
    "residual": ErrorFeedback,
    "dgc": MomentumCorrection,
    "none": NoFeedback,
}

__all__ = ["MEMORIES", "ErrorFeedback", "Memory", "MomentumCorrection", "NoFeedback"]
