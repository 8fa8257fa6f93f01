"""The base class of rules that are error feedback, and change the residual after each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.base import ErrorFeedback, Feedback
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


# Compute gradients where the residual would take the weights: step-ahead partial error feedback (arXiv 2601.20738).
#
# What a rank has not sent, its weights do not know: gradients are those of a model that is behind. So a rank moves its
# own weights along a part of its own residual while it computes a gradient, and then back: a preview. That part has had
# its effect on the gradient and leaves the residual.


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
