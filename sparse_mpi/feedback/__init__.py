"""Feedback rules: they decide what becomes of the gradient entries that a step did not send. `FEEDBACKS` names them."""

from __future__ import annotations

from sparse_mpi.feedback.base import ErrorFeedback, Feedback, FeedbackTraits, NoFeedback
from sparse_mpi.feedback.ef21 import EF21
from sparse_mpi.feedback.momentum import GlobalMomentum, MomentumCorrection
from sparse_mpi.feedback.wrapped import LeakyFeedback, StepAhead

FEEDBACKS: dict[str, type] = {
    "residual": ErrorFeedback,
    "dgc": MomentumCorrection,
    "gmc": GlobalMomentum,
    "leaky": LeakyFeedback,
    "ef21": EF21,
    "sa-pef": StepAhead,
    "none": NoFeedback,
}

__all__ = [
    "EF21",
    "FEEDBACKS",
    "ErrorFeedback",
    "Feedback",
    "FeedbackTraits",
    "GlobalMomentum",
    "LeakyFeedback",
    "MomentumCorrection",
    "NoFeedback",
    "StepAhead",
]
