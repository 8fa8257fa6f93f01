"""Compute gradients where the residual would take the weights: step-ahead partial error feedback (arXiv 2601.20738).

What a rank has not sent, its weights do not know: gradients are those of a model that is behind. So a rank moves its
own weights along a part of its own residual while it computes a gradient, and then back: a preview. That part has had
its effect on the gradient and leaves the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.leaky import Leaking


@dataclass(eq=False)
class StepAhead(Leaking):
    """Step-ahead partial error feedback: gradients at ``x - lr b e``, ``acc = (1 - b) e + g``, ``e = acc - sent``.

    The residual is ``(1 - b) e``. The optimizer must move the weights: `DistributedOptimizer` does so within
    ``optimizer.ahead()``.

    Args:
        fraction: b, the part of the residual that is previewed, in [0, 1); with 0 this is `ErrorFeedback`.

    Raises:
        TypeError, ValueError: fraction is not a number in [0, 1).
    """

    fraction: float = 0.5

    def __post_init__(self) -> None:
        check_range("fraction", self.fraction, "[0, 1)", "0.5 previews half of the residual")

    @property
    def kept(self) -> float:
        """Return ``1 - fraction``."""
        return 1 - self.fraction

    @property
    def previews(self) -> bool:
        """Return True: gradients belong to weights that `preview` has moved."""
        return True

    def preview(self) -> Array:
        """Return ``b e``, ``(n,)``: weights go against it, times the learning rate."""
        residual = self.residual
        return residual * residual.dtype.type(self.fraction / self.kept)
