"""The feedback rules that the conformance suites try: all there are, and variants of some."""

from __future__ import annotations

from sparse_mpi import FEEDBACKS, GlobalMomentum, LeakyFeedback, MomentumCorrection
from sparse_mpi.feedback import Feedback

VARIANTS = {
    "dgc-nesterov": MomentumCorrection(0.5, nesterov=True),
    "dgc-unmasked": MomentumCorrection(0.5, masking=False),
    "gmc-half": GlobalMomentum(0.5),
    "leaky-half": LeakyFeedback(0.5),
}
RULES: dict[str, Feedback] = {name: kind() for name, kind in FEEDBACKS.items()}
KINDS = RULES | VARIANTS
