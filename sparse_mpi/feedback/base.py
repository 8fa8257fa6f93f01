"""The protocol of a feedback rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sparse_mpi.arrays import Array
from sparse_mpi.sparse import Layout, SparseVector


@runtime_checkable
class Feedback(Protocol):
    """What one rank remembers between steps: `accumulate` the gradient, reduce, then `consume` what was sent.

    The instance that a caller makes, such as ``MomentumCorrection(0.9)``, only holds the hyperparameters; `start`
    returns the one that holds arrays. Gradients are flat NumPy or CuPy arrays ``(n,)``, as `sparse_mpi.arrays.enter`
    returns them.
    """

    @property
    def momentum(self) -> float:
        """Return the momentum that this rule applies, in [0, 1)."""
        return 0.0

    @property
    def leak(self) -> float:
        """Return the share of the residual that is lost in each step, in [0, 1]."""
        return 0.0

    @property
    def owes(self) -> bool:
        """Return True if what is not sent arrives later, so that a flush makes up for what has not arrived yet."""
        return True

    @property
    def works_in_place(self) -> bool:
        """Return True if the residual may live in the caller's own gradient buffer."""
        return False

    @property
    def needs_conservation(self) -> bool:
        """Return True if this rule cannot work with an algorithm that is exempt from the second law."""
        return False

    @property
    def previews(self) -> bool:
        """Return True if gradients must be computed where `preview` moves the weights."""
        return False

    @property
    def divisible(self) -> bool:
        """Return True if the others can go on without what one rank remembers, and any of them may take it over."""
        return True

    @property
    def residual(self) -> Array:
        """Return what has not been sent yet, ``(n,)``; zeros if there is nothing."""

    def start(self, layout: Layout, in_place: bool, ranks: int) -> Feedback:
        """Return an empty instance with the same hyperparameters for gradients of ``layout`` on ``ranks`` ranks.

        With ``in_place`` the residual lives in the caller's own gradient buffer.

        Raises:
            ValueError: this rule cannot work in place.
        """

    def share_among(self, ranks: int) -> None:
        """Take note that there are as many ``ranks`` from now on as this says; `start` told the number before."""
        return

    def check_gradient(self, gradient: Array) -> None:
        """Raise ValueError or TypeError unless `accumulate` can take ``gradient``; change nothing."""

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Combine ``gradient`` with what is left of earlier steps to acc ``(n,)``, from which entries are selected.

        Returns:
            acc, float32 or float64, and the array ``(n,)`` that must still be added to it in place, or None. The
            addition is left to the caller because a selector can do it in the same pass over memory.
        """

    def withhold(self, parts: Sequence[slice]) -> None:
        """Apply no momentum to these parts of the gradient in the step that follows, nor let theirs fade.

        No rank has a gradient there, as for layers that a step skips, which torch's optimizers leave alone. It may be
        called again before the step's `consume`, with parts that are to be taken instead.
        """
        return

    def owed(self) -> Array:
        """Return all that is owed as the acc ``(n,)`` of a step without a gradient, in which all of it is sent.

        Such a step ends with `consume`, as every other. It is not an `accumulate` of zeros, which would apply momentum.

        Raises:
            ValueError: this rule never `owes` anything.
        """

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract what was sent, and take note of the step's result; where a sent value is not finite, keep nothing.

        Args:
            sent: what this rank gave.
            total: the sum over all ranks, the same bytes on each.
        """

    def outcome(self, total: SparseVector | Array) -> SparseVector | Array:
        """Return the result of a step, after `consume`, for the caller: ``total``, unless the rule makes more of it."""
        return total

    def preview(self) -> Array | None:
        """Return what weights must go against while this rank computes its gradient, ``(n,)``; None if they stay.

        It is to be multiplied by the learning rate.
        """
        return None

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what this rank gave away, ``(n,)``, in the finished step that began with ``acc``.

        By the second law, its sum over the ranks is the step's total.
        """

    def adopt(self, buffer: Array) -> None:
        """Make ``buffer`` ``(n,)``, which holds nothing yet, the residual.

        Raises:
            ValueError: this instance does not work in place.
        """

    def state(self) -> dict[str, Array]:
        """Return all that is remembered: named arrays ``(n,)``, not copied.

        The arrays must be additive: the sums over several ranks describe what these ranks remember together.
        """

    def common(self) -> dict[str, Array]:
        """Return what is remembered that is the same on all ranks: named arrays ``(n,)``, not copied."""
        return {}

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless `load` can take ``state``; change nothing."""

    def load(self, state: dict[str, Array]) -> None:
        """Restore copies of the arrays that `state` and `common` returned; ignore other entries of ``state``."""


def not_owed(rule: Feedback) -> str:
    """Return the message of an error about a flush with a rule that owes nothing."""
    return (
        f"feedback must owe what was not sent for that to be flushed, as rules do that send it later, got {rule!r}; "
        "leave the flush out, or use feedback='residual'"
    )
