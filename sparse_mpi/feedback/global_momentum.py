"""Take SGD's momentum from the reduced gradient: global momentum (Zhao, Xie, Gao and Li, arXiv 1905.12948).

An optimizer's own momentum pushes an entry that arrives late as if it were news. Here momentum enters before the
selection: after every step each rank adds its share of the momentum of the result, ``m / P * total``, to its residual.
The shares add up to the momentum that SGD has where the result has entries. That costs no byte, and momentum that is
not selected again waits in the residual with the gradient that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.feedback.leaky import LeakyFeedback
from sparse_mpi.feedback.momentum import check_momentum
from sparse_mpi.feedback.residual import add, check_sizes
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.sparse import SparseVector, merge

LAST = "last"  # the key, in a state, of the last result


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
    _last: SparseVector | Array | None = field(default=None, init=False, repr=False)  # over _share: what was added
    _share: float = field(default=0.0, init=False, repr=False)  # m / P of that step
    _withheld: SparseVector | None = field(default=None, init=False, repr=False)  # of ``_last``, in this step

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.momentum)
        if self.late is not None:
            check_momentum(self.late, "late")

    def withhold(self, parts: Sequence[slice]) -> None:
        """Take the momentum of these parts out of the residual until `consume` puts it back, as it was."""
        if self._withheld is not None:
            add(self._inner.residual, _times(self._withheld, self._share))
        self._withheld = None
        if parts and self._last is not None:
            if not isinstance(self._last, SparseVector):
                self._last = like(self._last, self._inner.residual)
            held = _within(self._last, parts)
            if len(held.indices):
                self._withheld = held
                add(self._inner.residual, _times(held, -self._share))

    def consume(self, sent: SparseVector | Array, total: SparseVector | Array) -> None:
        """Subtract ``sent`` from the residual, let the rest leak, and add this rank's share of ``total``'s momentum.

        Where ``total`` is not finite there is no momentum.
        """
        super().consume(sent, total)
        self._last, self._share = _finite(total, self._inner.residual.dtype), self.momentum / self._ranks
        if isinstance(self._last, SparseVector) and self.late is not None and self.momentum:
            self._last = _times(self._last, self.late / self.momentum)
        held, self._withheld = self._withheld, None
        if held is not None and isinstance(self._last, SparseVector):
            both = [namespace(held.values).concatenate(pair) for pair in zip(self._last[:2], held[:2], strict=True)]
            self._last = merge(SparseVector(both[0], both[1], held.size))
        elif held is not None:
            add(self._last, held)
        add(self._inner.residual, _times(self._last, self._share))

    def given(self, acc: Array, sent: SparseVector | Array) -> Array:
        """Return what acc lost before the leak and before the momentum was added, ``(n,)``."""
        given = super().given(acc, sent)
        if self._last is not None:
            add(given, _times(self._last, self._share / self.keep))
        return given

    def common(self) -> dict[str, Array]:
        """Return what the ranks' shares of the momentum are of: the last result where finite, or less of it if late.

        Where a tensor had no gradient it is the one of the last step in which it had.
        """
        last = np.zeros(len(self.residual), np.float32) if self._last is None else self._last
        return {LAST: last.to_dense() if isinstance(last, SparseVector) else last}

    def check_state(self, state: dict[str, Array]) -> None:
        super().check_state(state)
        check_sizes(state, [LAST] if LAST in state else [], len(self._inner.residual))

    def load(self, state: dict[str, Array]) -> None:
        """Restore the residual, and what `common` returned, which earlier versions did not save."""
        super().load(state)
        self._last, self._share = state[LAST].copy() if LAST in state else None, self.momentum / self._ranks


def _finite(total: SparseVector | Array, dtype: Any) -> SparseVector | Array:
    """Return a copy of ``total``, with 0 where it is not finite."""
    values = total.values if isinstance(total, SparseVector) else total
    xp = namespace(values)
    finite = xp.where(xp.isfinite(values), values, 0).astype(dtype, copy=False)
    return SparseVector(total.indices.copy(), finite, total.size) if isinstance(total, SparseVector) else finite


def _within(x: SparseVector | Array, parts: Sequence[slice]) -> SparseVector:
    """Return the entries of ``x`` ``(n,)`` in these parts; of an array those that are not 0."""
    if isinstance(x, SparseVector):
        within = namespace(x.values).zeros(x.size, bool)
        for part in parts:
            within[part] = True
        at = within[x.indices]
        return SparseVector(x.indices[at], x.values[at], x.size)
    xp = namespace(x)
    found = [part.start + xp.flatnonzero(x[part]) for part in parts]
    indices = xp.concatenate(found).astype(index_dtype(len(x)))
    return SparseVector(indices, x[indices], len(x))


def _times(x: SparseVector | Array, factor: float) -> SparseVector | Array:
    """Return ``factor * x``, of the dtype of ``x``."""
    factor = float(factor)  # a number of NumPy would widen
    return x._replace(values=factor * x.values) if isinstance(x, SparseVector) else factor * x
