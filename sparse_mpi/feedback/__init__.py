"""Feedback rules for gradient entries that a step did not send. `FEEDBACKS` names them."""

from __future__ import annotations

from sparse_mpi.checks import Registry
from sparse_mpi.feedback.base import ErrorFeedback, Feedback, FeedbackTraits, NoFeedback
from sparse_mpi.feedback.leaky import LeakyFeedback
from sparse_mpi.feedback.momentum import GlobalMomentum, MomentumCorrection

FEEDBACKS = Registry(
    "feedback",
    {
        "residual": ErrorFeedback,
        "dgc": MomentumCorrection,
        "gmc": GlobalMomentum,
        "leaky": LeakyFeedback,
        "none": NoFeedback,
    },
)

__all__ = [
    "FEEDBACKS",
    "ErrorFeedback",
    "Feedback",
    "FeedbackTraits",
    "GlobalMomentum",
    "LeakyFeedback",
    "MomentumCorrection",
    "NoFeedback",
]
