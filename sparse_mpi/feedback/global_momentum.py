"""Take SGD's momentum from the reduced gradient: global momentum (Zhao, Xie, Gao and Li, arXiv 1905.12948).

An optimizer's own momentum pushes an entry that arrives late as if it were news. Here momentum enters before the
selection: after every step each rank adds its share of the momentum of the result, ``m / P * total``, to its residual.
The shares add up to the momentum that SGD has where the result has entries. That costs no byte, and momentum that is
not selected again waits in the residual with the gradient that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.feedback.base import Feedback
from sparse_mpi.feedback.momentum import check_momentum
from sparse_mpi.feedback.residual import ErrorFeedback
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class GlobalMomentum(Feedback):
    """Error feedback with global momentum. The optimizer's own momentum must be 0.

    Between two steps the residual holds what was not sent, and this rank's share of the momentum. With everything sent,
    as in dense first steps, training is that of SGD with momentum, to rounding.

    Args:
        momentum: m, in [0, 1); with 0 this is `ErrorFeedback`.

    Raises:
        TypeError, ValueError: momentum is not a number in [0, 1).
    """

    momentum: float = 0.9
    _inner: ErrorFeedback = field(default_factory=ErrorFeedback, init=False, repr=False)
    _ranks: int = field(default=1, init=False, repr=False)
    _pushed: SparseVector | Array | None = field(default=None, init=False, repr=False)  # of the last step

    def __post_init__(self) -> None:
        check_momentum(self.momentum)

    def start(self, size: int, in_place: bool, ranks: int) -> Feedback:
        """Return an instance with the same momentum and a zero residual, in the gradient's buffer with ``in_place``."""
        fresh = GlobalMomentum(self.momentum)
        fresh._inner, fresh._ranks = self._inner.start(size, in_place, ranks), ranks
        return fresh

    @property
    def residual(self) -> Array:
        """Return what has not been sent yet and this rank's share of the momentum, ``(n,)``."""
        return self._inner.residual

    def check_gradient(self, gradient: Array) -> None:
        """Raise what `ErrorFeedback.check_gradient` or that of `AdoptedFeedback` raises."""
        self._inner.check_gradient(gradient)

    def accumulate(self, gradient: Array) -> tuple[Array, Array | None]:
        """Return the residual, and ``gradient``, which must still be added to it in place to make the step's acc."""
        return self._inner.accumulate(gradient)

    def owed(self) -> Array:
        """Return the residual, this rank's share of the momentum included."""
        return self._inner.owed()

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual, and add this rank's share of the momentum of ``total``.

        Where ``total`` is not finite there is no momentum.
        """
        self._inner.consume(sent, total)
        self._pushed = self._share_of(total)
        residual = self._inner.residual
        if isinstance(self._pushed, SparseVector):
            kernels.of(residual).add(residual, self._pushed.indices, self._pushed.values)
        else:
            residual += self._pushed

    def _share_of(self, total: SparseVector | Array) -> SparseVector | Array:
        """Return ``m / P * total``, with 0 where that is not finite, in the residual's dtype."""
        dense = not isinstance(total, SparseVector)
        values = total if dense else total.values
        xp = namespace(values)
        share = xp.where(xp.isfinite(values), values, 0) * (self.momentum / self._ranks)
        share = share.astype(self._inner.residual.dtype, copy=False)
        return share if dense else SparseVector(total.indices, share, total.size)

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what acc lost, ``acc - residual`` before the momentum was added, ``(n,)``."""
        given = self._inner.given(acc, sent)
        if isinstance(self._pushed, SparseVector):
            kernels.of(given).add(given, self._pushed.indices, self._pushed.values)
        elif self._pushed is not None:
            given += self._pushed
        return given

    def adopt(self, buffer: Array) -> None:
        """Make ``buffer`` the residual, as `AdoptedFeedback.adopt` does; only in place."""
        self._inner.adopt(buffer)

    def state(self) -> dict[str, Array]:
        """Return the residual, which includes the momentum."""
        return self._inner.state()

    def check_state(self, state: dict[str, Array]) -> None:
        """Raise ValueError unless ``state`` has a residual that `load` can take."""
        self._inner.check_state(state)

    def load(self, state: dict[str, Array]) -> None:
        """Restore the residual, momentum included."""
        self._inner.load(state)
