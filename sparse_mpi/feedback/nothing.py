"""Reduce without error feedback: what a step did not send is lost. A baseline that shows what the residual is for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparse_mpi.arrays import Array, widened
from sparse_mpi.feedback.base import Feedback, FeedbackTraits
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class NoFeedback(Feedback):
    """Feedback that keeps nothing; the residual is always zero.

    A weaker second law remains: what the ranks sent adds up to total.
    """

    size: int = field(default=0, init=False, repr=False)

    def start(self, layout: Layout, in_place: bool, ranks: int) -> Feedback:
        """Return an instance for gradients of ``layout``.

        Raises:
            ValueError: ``in_place`` is set, but there is no residual for the gradient's buffer to hold.
        """
        if in_place:
            raise ValueError("in_place must be False with NoFeedback, which has no residual, got True")
        fresh = NoFeedback()
        fresh.size = Layout.of(layout).size
        return fresh

    @property
    def traits(self) -> FeedbackTraits:
        return FeedbackTraits(leak=1.0, defers=False)

    @property
    def residual(self) -> Array:
        return np.zeros(self.size, np.float32)

    def accumulate(self, gradient: Array) -> tuple[Array, None]:
        """Return ``gradient`` itself as acc, which no algorithm changes, and nothing to add."""
        return widened(gradient), None

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> SparseVector | Array:
        """Return ``total``: there is no residual to subtract from."""
        return total

    def state(self, replicated: bool = False) -> dict[str, Array]:
        return {}

    def load(self, state: dict[str, Array], ranks: int = 0) -> None:
        """Do nothing: there is nothing to restore."""
