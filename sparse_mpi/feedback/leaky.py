"""Error feedback that forgets: each step loses a share of the residual."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.base import ErrorFeedback, FeedbackTraits
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class LeakyFeedback(ErrorFeedback):
    """Error feedback with a leak: ``acc = keep * e + g``, ``e = acc - sent``.

    The residual is ``keep * e``: it leaks once a step has sent its part.

    Args:
        keep: remaining share, in (0, 1]; with 1 this is `ErrorFeedback`. 0.95 is SparseLoCo's, 0.999 DeMo's.

    Raises:
        TypeError, ValueError: keep is not a number in (0, 1].
    """

    keep: float = 0.95

    def __post_init__(self) -> None:
        check_range("keep", self.keep, "(0, 1]", "0.95 is usual, feedback='none' keeps nothing")

    @property
    def traits(self) -> FeedbackTraits:
        return replace(super().traits, leak=1 - self.keep)

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
        super().consume(sent, total)
        if self.keep < 1:
            residual = self.residual
            residual *= residual.dtype.type(self.keep)

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return the part of acc ``(n,)`` lost before the leak."""
        with np.errstate(invalid="ignore"):
            return acc - self.residual / self.residual.dtype.type(self.keep)
