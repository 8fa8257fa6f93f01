"""Let what has not been sent fade away: leaky error feedback, as DeMo and SparseLoCo have it.

Entries that are never selected decay by a constant factor a step, instead of waiting until they are large: what does
arrive is younger. This is the only kind of loss in the library that is meant, so the rule declares it: `Feedback.leak`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.wrapped import WrappedFeedback
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class Leaking(WrappedFeedback):
    """The base class of rules that lose a share of the residual as soon as a step has sent its part."""

    @property
    def kept(self) -> float:
        """Return the share of the residual that is kept from step to step, in (0, 1]."""
        return 1.0

    @property
    def leak(self) -> float:
        """Return ``1 - kept``."""
        return 1 - self.kept

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual, and let what is left of it leak."""
        super().consume(sent, total)
        if self.leak:
            residual = self._inner.residual
            residual *= residual.dtype.type(self.kept)

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what acc lost before the leak, ``(n,)``."""
        with np.errstate(invalid="ignore"):
            return acc - self.residual / self.residual.dtype.type(self.kept)


@dataclass(eq=False)
class LeakyFeedback(Leaking):
    """Error feedback that keeps a share of the residual from step to step: ``acc = keep * e + g``, ``e = acc - sent``.

    The residual is ``keep * e``: it leaks as soon as a step has sent its part, so that the gradient can then be added
    to it in place.

    Args:
        keep: the share that is kept, in (0, 1]; with 1 this is `ErrorFeedback`. 0.95 is SparseLoCo's, 0.999 DeMo's.

    Raises:
        TypeError, ValueError: keep is not a number in (0, 1].
    """

    keep: float = 0.95

    def __post_init__(self) -> None:
        check_range("keep", self.keep, "(0, 1]", "0.95 is usual, feedback='none' keeps nothing")

    @property
    def kept(self) -> float:
        """Return ``keep``."""
        return self.keep
