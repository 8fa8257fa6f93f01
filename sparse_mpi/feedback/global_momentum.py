"""Take SGD's momentum from the reduced gradient: global momentum (Zhao, Xie, Gao and Li, arXiv 1905.12948).

An optimizer's own momentum pushes an entry that arrives late as if it were news. Here momentum enters before the
selection: after every step each rank adds its share of the momentum of the result, ``m / P * total``, to its residual.
The shares add up to the momentum that SGD has where the result has entries. That costs no byte, and momentum that is
not selected again waits in the residual with the gradient that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.feedback.leaky import LeakyFeedback
from sparse_mpi.feedback.momentum import check_momentum
from sparse_mpi.feedback.residual import add
from sparse_mpi.sparse import SparseVector


@dataclass(eq=False)
class GlobalMomentum(LeakyFeedback):
    """Error feedback with global momentum. The optimizer's own momentum must be 0.

    Between two steps the residual holds what was not sent, and this rank's share of the momentum. With everything sent,
    as in dense first steps, training is that of SGD with momentum, to rounding.

    Args:
        momentum: m, in [0, 1); with 0 this is `LeakyFeedback`.
        late: the momentum of sparse results, of which entries have waited; None: the same. Checkpoints do not depend on
            it.
        keep: the share of what was not sent that is kept from step to step, see `LeakyFeedback`; 1 loses nothing.

    Raises:
        TypeError, ValueError: momentum or late is not a number in [0, 1), or keep not one in (0, 1].
    """

    keep: float = field(default=1.0, kw_only=True)
    momentum: float = 0.9
    late: float | None = field(default=None, kw_only=True, repr=False)
    _pushed: SparseVector | Array | None = field(default=None, init=False, repr=False)  # of the last step

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.momentum)
        if self.late is not None:
            check_momentum(self.late)

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual, let the rest leak, and add this rank's share of ``total``'s momentum.

        Where ``total`` is not finite there is no momentum.
        """
        super().consume(sent, total)
        self._pushed = self._share_of(total)
        add(self._inner.residual, self._pushed)

    def _share_of(self, total: SparseVector | Array) -> SparseVector | Array:
        """Return ``m / P * total``, with 0 where that is not finite, in the residual's dtype."""
        dense = not isinstance(total, SparseVector)
        momentum = self.momentum if dense or self.late is None else self.late
        values = total if dense else total.values
        xp = namespace(values)
        share = xp.where(xp.isfinite(values), values, 0) * (momentum / self._ranks)
        share = share.astype(self._inner.residual.dtype, copy=False)
        return share if dense else SparseVector(total.indices, share, total.size)

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what acc lost before the leak and before the momentum was added, ``(n,)``."""
        given, pushed = super().given(acc, sent), self._pushed
        if isinstance(pushed, SparseVector):
            pushed = pushed._replace(values=pushed.values / pushed.values.dtype.type(self.keep))
        elif pushed is not None:
            pushed = pushed / pushed.dtype.type(self.keep)
        if pushed is not None:
            add(given, pushed)
        return given
