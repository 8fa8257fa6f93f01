"""Reduce without error feedback: what a step did not send is lost. A baseline that shows what the residual is for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparse_mpi.arrays import Array, widened
from sparse_mpi.feedback.base import Feedback, not_owed
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
    def leak(self) -> float:
        """Return 1: what is not sent is lost."""
        return 1.0

    @property
    def owes(self) -> bool:
        """Return False: what is not sent is lost."""
        return False

    @property
    def residual(self) -> Array:
        """Return zeros ``(n,)``."""
        return np.zeros(self.size, np.float32)

    def check_gradient(self, gradient: Array) -> None:
        """Accept any gradient."""

    def accumulate(self, gradient: Array) -> tuple[Array, None]:
        """Return ``gradient`` itself as acc, which no algorithm changes, and nothing to add."""
        return widened(gradient), None

    def owed(self) -> Array:
        """Raise ValueError: what was not sent is lost, not owed."""
        raise ValueError(not_owed(self))

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Do nothing: there is no residual to subtract from."""

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return ``sent`` as ``(n,)``; the rest of acc is lost."""
        return sent.to_dense() if isinstance(sent, SparseVector) else sent

    def adopt(self, buffer: Array) -> None:
        """Raise ValueError: there is no residual to keep in ``buffer``."""
        raise ValueError("in_place must be True for a buffer to be adopted, which NoFeedback cannot be")

    def state(self) -> dict[str, Array]:
        """Return an empty state."""
        return {}

    def check_state(self, state: dict[str, Array]) -> None:
        """Accept any state."""

    def load(self, state: dict[str, Array]) -> None:
        """Do nothing: there is nothing to restore."""
