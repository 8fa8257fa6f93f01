"""The base class of rules that are error feedback, and change the residual after each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sparse_mpi.arrays import Array
from sparse_mpi.feedback.base import Feedback
from sparse_mpi.feedback.residual import ErrorFeedback
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class WrappedFeedback(Feedback):
    """A rule that keeps its residual in an `ErrorFeedback`, which may live in the gradient's own buffer.

    A subclass extends `consume`, and `given` accordingly.
    """

    _inner: ErrorFeedback = field(default_factory=ErrorFeedback, init=False, repr=False)
    _ranks: int = field(default=1, init=False, repr=False)

    def start(self, layout: Layout, in_place: bool, ranks: int) -> WrappedFeedback:
        """Return an instance with the same hyperparameters and a zero residual, see `ErrorFeedback.start`."""
        fresh = replace(self)
        fresh._inner, fresh._ranks = ErrorFeedback().start(layout, in_place, ranks), ranks
        return fresh

    @property
    def works_in_place(self) -> bool:
        """Return True."""
        return True

    @property
    def residual(self) -> Array:
        """Return what has not been sent yet, ``(n,)``, as the rule has changed it."""
        return self._inner.residual

    def share_among(self, ranks: int) -> None:
        """Take note that there are as many ``ranks`` from now on as this says."""
        self._ranks = ranks

    def check_gradient(self, gradient: Array) -> None:
        """Raise what `ErrorFeedback.check_gradient` or that of `AdoptedFeedback` raises."""
        self._inner.check_gradient(gradient)

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Return the residual, and ``gradient``, which must still be added to it in place to make the step's acc."""
        return self._inner.accumulate(gradient)

    def owed(self) -> Array:
        """Return the residual."""
        return self._inner.owed()

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual, see `ErrorFeedback.consume`."""
        self._inner.consume(sent, total)

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what acc lost, ``(n,)``."""
        return self._inner.given(acc, sent)

    def adopt(self, buffer: Array) -> None:
        """Make ``buffer`` the residual, as `AdoptedFeedback.adopt` does; only in place."""
        self._inner.adopt(buffer)

    def state(self) -> dict[str, Array]:
        """Return the residual."""
        return self._inner.state()

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless ``state`` has a residual that `load` can take."""
        self._inner.check_state(state)

    def load(self, state: dict[str, Array]) -> None:
        """Restore the residual."""
        self._inner.load(state)
