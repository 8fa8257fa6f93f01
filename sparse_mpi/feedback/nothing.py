"""No error feedback: what a step did not send is lost. To show what the residual is for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparse_mpi.arrays import Array, widened
from sparse_mpi.feedback.base import Memory
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class NoFeedback(Memory):
    """Keeps nothing; the residual is always zero. Of the second law this remains: what was sent adds up to total."""

    size: int = field(default=0, init=False, repr=False)

    def start(self, size: int, in_place: bool) -> Memory:
        """A memory of nothing.

        Raises:
            ValueError: ``in_place``; there is no residual for the gradient's buffer to hold.
        """
        if in_place:
            raise ValueError("in_place must be False with NoFeedback, which has no residual, got True")
        fresh = NoFeedback()
        fresh.size = size
        return fresh

    @property
    def residual(self) -> Array:
        """Zeros."""
        return np.zeros(self.size, np.float32)

    def check_gradient(self, gradient: Array) -> None:
        """Any will do."""

    def accumulate(self, gradient: Array) -> tuple[Array, None]:
        """``gradient`` itself; no algorithm changes its acc."""
        return widened(gradient), None

    def consume(self, sent: SparseVector | Array) -> None:
        """There is nothing to subtract it from."""

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """What was sent; all the rest of acc is lost."""
        return sent.to_dense() if isinstance(sent, SparseVector) else sent

    def state(self) -> dict[str, Array]:
        """Nothing."""
        return {}

    def check_state(self, state: dict[str, Array]) -> None:
        """Any will do."""

    def load(self, state: dict[str, Array]) -> None:
        """There is nothing to take up."""
