"""What a memory is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sparse_mpi.arrays import Array
from sparse_mpi.sparse import SparseVector


@runtime_checkable
class Memory(Protocol):
    """A rank's own, from step to step: `accumulate` the gradient, reduce, `consume` what was sent.

    The instance that a caller makes, ``MomentumCorrection(0.9)``, only says how; `start` makes the one that remembers.
    Gradients are flat NumPy or CuPy arrays ``(n,)`` as `sparse_mpi.arrays.enter` gives them.
    """

    @property
    def masking(self) -> bool:
        """Tell if `consume` forgets more than what was sent, where something was sent."""
        return False

    @property
    def residual(self) -> Array:
        """``(n,)`` what has not been sent yet; zeros where there is nothing."""

    def start(self, size: int, in_place: bool) -> Memory:
        """An empty memory of this kind for n = ``size`` elements; ``in_place``: in the caller's own gradient buffer.

        Raises:
            ValueError: this kind of memory cannot work in place.
        """

    def check_gradient(self, gradient: Array) -> None:
        """Raise ValueError or TypeError unless `accumulate` can take ``gradient``; nothing changes."""

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Join ``gradient`` with what is owed to the step's acc ``(n,)``, from which entries are selected.

        Returns:
            acc, float32 or float64, and what has yet to be added to it in place, if anything: that is left to a
            selection which does it in the same pass.
        """

    def consume(self, sent: SparseVector | Array) -> None:
        """Forget what was sent; of a value that is not finite nothing is kept."""

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """``(n,)`` what left this rank's hands in a step that began with ``acc`` and is over: by the second law, the
        sum of it over the ranks is the step's total."""

    def state(self) -> dict[str, Array]:
        """All that is remembered: named arrays ``(n,)``, not copied; of several ranks, their sums mean the same."""

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless `load` can take ``state``; nothing changes."""

    def load(self, state: dict[str, Array]) -> None:
        """Take up copies of what `state` returned; other entries of ``state`` are left alone."""
