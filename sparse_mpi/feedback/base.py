"""The protocol of a feedback rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace, widened
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import Range

E = TypeVar("E", bound="ErrorFeedback")
VECTOR = Range(lengths=("n",))  # arrays that a rule remembers: gradients may have any value


@dataclass(frozen=True)
class FeedbackTraits:
    """The properties that a rule declares."""

    momentum: float = 0.0  #: the rule applies it, in [0, 1)
    leak: float = 0.0  #: the share of the residual that is lost in each step, in [0, 1]
    defers: bool = True  #: entries not sent arrive later, so that a flush sends the rest


@runtime_checkable
class Feedback(Protocol):
    """A rank's memory between steps: `accumulate` the gradient, reduce, then `consume` the sent entries.

    A caller's instance only holds the hyperparameters; `start` returns one with arrays. Gradients are flat NumPy or
    CuPy arrays ``(n,)``, see `sparse_mpi.arrays.enter`.
    """

    @property
    def traits(self) -> FeedbackTraits:
        """Return the declared properties."""
        return FeedbackTraits()

    @property
    def residual(self) -> Array:
        """Return the entries not sent yet, ``(n,)``; zeros if there are none."""

    def start(self, layout: Layout, ranks: int) -> Feedback:
        """Return an empty instance with the same hyperparameters for ``layout`` on ``ranks`` ranks."""

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Combine ``gradient`` with the residual to acc ``(n,)``, for the selection.

        Returns:
            acc, float32 or float64, and an array ``(n,)`` still to be added in place, or None. A selector can add it in
            its own pass over memory.
        """

    def withhold(self, parts: Sequence[slice]) -> None:
        """In the next step, neither apply nor fade the momentum of these parts of the gradient.

        No rank has a gradient there, as in skipped layers, which torch's optimizers leave unchanged. A second call
        before `consume` replaces the parts.
        """
        return

    def pending(self, without: Array | None = None) -> Array:
        """Return the acc ``(n,)`` of a flush, a step that sends the residual without a gradient.

        The `accumulate` of a finite gradient ``without`` ``(n,)`` is undone first, if given, to rounding. The flush
        ends with `consume`, as every step.

        Raises:
            ValueError: this rule never defers anything.
        """
        raise ValueError(
            f"feedback must owe what was not sent for that to be flushed, as rules do that send it later, got "
            f"{self!r}; leave the flush out, or use feedback='residual'"
        )

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
        """Subtract the sent entries, and note the step's result; an entry with a sent NaN or Inf becomes 0.

        Args:
            sent: this rank's part.
            total: sum over all ranks, the same bytes on each.
            ranks: number of ranks in ``total``; 0: unchanged.
        """

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return the part of ``acc`` ``(n,)`` lost in the finished step: ``sent``, for most rules.

        By the second law, its sum over the ranks is the step's total.
        """
        return sent.to_dense() if isinstance(sent, SparseVector) else sent

    def state(self, replicated: bool = False) -> dict[str, Array]:
        """Return the rule's memory: named arrays ``(n,)``, not copied.

        The arrays must be additive: sums over several ranks describe their joint memory. With ``replicated`` they are
        those equal on all ranks instead.
        """

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        """Restore copies of both kinds of arrays of `state`; ignore other entries.

        ``ranks`` is the number from now on; 0: unchanged.
        """


def whole_state(rule: Feedback) -> dict[str, Array]:
    return rule.state() | rule.state(replicated=True)


# Reduce without error feedback: entries not sent are lost. A baseline that shows the use of the residual.


@dataclass(eq=False)
class NoFeedback(Feedback):
    """Feedback without memory; the residual is always zero.

    A weaker second law remains: the sum of sent entries is total.
    """

    size: int = field(default=0, init=False, repr=False)

    def start(self, layout: Layout, ranks: int) -> NoFeedback:
        fresh = replace(self)
        fresh.size = Layout.of(layout).size
        return fresh

    @property
    def traits(self) -> FeedbackTraits:
        return FeedbackTraits(leak=1.0, defers=False)

    @property
    def residual(self) -> Array:
        return np.zeros(self.size, np.float32)

    def accumulate(self, gradient: Array) -> tuple[Array, None]:
        return widened(gradient), None

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
        """Do nothing: there is no residual."""

    def state(self, replicated: bool = False) -> dict[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        """Do nothing: there is no memory."""


# Add entries that a step did not send to the next step's gradient: error feedback (Stich et al., NeurIPS'18).


@dataclass(eq=False)
class ErrorFeedback(Feedback):
    """Error feedback with a residual ``(n,)``: float32, or float64 for float64 gradients.

    The first `accumulate` allocates it, in the gradient's library; it changes in place.
    """

    size: int = field(default=0, init=False, repr=False)
    _residual: Array | None = field(default=None, init=False, repr=False)

    def start(self: E, layout: Layout, ranks: int) -> E:
        fresh = replace(self)
        fresh.size = Layout.of(layout).size
        return fresh

    @property
    def residual(self) -> Array:
        return np.zeros(self.size, np.float32) if self._residual is None else self._residual

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Return the residual, and ``gradient``, still to be added in place to make acc."""
        if self._residual is None:
            self._residual = gradient.copy() if gradient.dtype.itemsize > 2 else widened(gradient)
            return self._residual, None
        if self._residual.dtype != gradient.dtype or type(self._residual) is not type(gradient):
            self._residual = fitted(self._residual, gradient)
        return self._residual, gradient

    def pending(self, without: Array | None = None) -> Array:
        residual = self._residual = self.residual
        if without is not None:
            kernels.of(residual).subtract_dense(residual, widened(without).astype(residual.dtype, copy=False))
        return residual

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array, ranks: int = 0) -> None:
        """Subtract ``sent`` from the residual in place.

        Where a sent value is not finite it becomes 0: Inf - Inf would poison every later step.
        """
        residual = self.residual if self._residual is None else self._residual
        if isinstance(sent, SparseVector):
            kernels.of(residual).subtract(residual, sent.indices, sent.values)
        else:
            kernels.of(residual).subtract_dense(residual, sent)

    def contribution(self, acc: Array, sent: SparseVector | Array) -> Array:
        with np.errstate(invalid="ignore"):
            return acc - self.residual

    def state(self, replicated: bool = False) -> dict[str, Array]:
        return {} if replicated else {"residual": self.residual}

    def load(self, state: Mapping[str, Array], ranks: int = 0) -> None:
        self._residual = state["residual"].copy()


def check_sizes(state: Mapping[str, Array], names: Iterable[str], size: int) -> None:
    for name in names:
        VECTOR.check_array(f"state[{name!r}]", state.get(name), "f", {"n": size})


def add(x: Array, addend: SparseVector | Array) -> None:
    if isinstance(addend, SparseVector):
        kernels.of(x).add(x, addend.indices, addend.values.astype(x.dtype, copy=False))
    else:
        x += addend


def fitted(buffer: Array, gradient: Array) -> Array:
    """Return ``buffer`` in the library of ``gradient``, at least as precise as before and as ``gradient``."""
    if isinstance(buffer, np.ndarray) and not isinstance(gradient, np.ndarray):  # restored on the host
        buffer = namespace(gradient).asarray(buffer)
    return buffer.astype(gradient.dtype) if buffer.dtype.itemsize < gradient.dtype.itemsize else buffer
