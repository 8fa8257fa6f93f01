"""The base class of rules that are error feedback, and change the residual after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_range
from sparse_mpi.feedback.base import ErrorFeedback, Feedback, FeedbackTraits
from sparse_mpi.sparse import Layout, SparseVector


@dataclass(eq=False)
class WrappedFeedback(Feedback):
    """A rule that keeps its residual in an `ErrorFeedback`, which may live in the gradient's own buffer.

    A subclass extends `consume`, and `contribution` accordingly.
    """

    _inner: ErrorFeedback = field(default_factory=ErrorFeedback, init=False, repr=False)
    _sharers: int = field(default=1, init=False, repr=False)

    def start(self, layout: Layout, in_place: bool, ranks: int) -> WrappedFeedback:
        """Return an instance with the same hyperparameters and a zero residual, see `ErrorFeedback.start`."""
        fresh = replace(self)
        fresh._inner, fresh._sharers = ErrorFeedback().start(layout, in_place, ranks), ranks
        return fresh

    @property
    def traits(self) -> FeedbackTraits:
        return self._inner.traits

    @property
    def residual(self) -> Array:
        return self._inner.residual

    def check_gradient(self, gradient: Array) -> None:
        self._inner.check_gradient(gradient)

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        return self._inner.accumulate(gradient)

    def pending(self) -> Array:
        return self._inner.pending()

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> SparseVector | Array:
        return self._inner.consume(sent, total)

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
        return self._inner.contribution(acc, sent)

    def bind_buffer(self, buffer: Array) -> None:
        self._inner.bind_buffer(buffer)

    def state(self, replicated: bool = False) -> dict[str, Array]:
        return self._inner.state(replicated)

    def check_state(self, state: dict[str, Array]) -> None:
        self._inner.check_state(state)

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        self._inner.load(state)


@dataclass(eq=False)
class Leaking(WrappedFeedback):
    """The base class of rules that lose a share of the residual as soon as a step has sent its part."""

    @property
    def kept(self) -> float:
        """Return the share of the residual that is kept from step to step, in (0, 1]."""
        return 1.0

    @property
    def traits(self) -> FeedbackTraits:
        return replace(super().traits, leak=1 - self.kept)

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> SparseVector | Array:
        """Subtract ``sent`` from the residual, and let what is left of it leak."""
        super().consume(sent, total)
        if self.kept < 1:
            residual = self._inner.residual
            residual *= residual.dtype.type(self.kept)
        return total

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
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
    def traits(self) -> FeedbackTraits:
        return replace(super().traits, previews=True)

    def preview(self) -> Array:
        """Return ``b e``, ``(n,)``: weights go against it, times the learning rate."""
        residual = self.residual
        return residual * residual.dtype.type(self.fraction / self.kept)
