"""Error feedback: what a step did not send is added to the next step's gradient (Stich et al., NeurIPS'18)."""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.sparse import SparseVector


class ErrorFeedback:
    """The residual: ``(n,)`` float32 (float64 for float64 gradients), the one big thing that changes in place.

    It is allocated, in the library of the gradient, by the first `accumulate`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._residual: Array | None = None

    @property
    def residual(self) -> Array:
        """What has not been sent yet; zeros before the first step."""
        return np.zeros(self.size, np.float32) if self._residual is None else self._residual

    @residual.setter
    def residual(self, value: Array) -> None:
        self._residual = namespace(value).array(value)

    def accumulate(self, gradient: Array) -> Array:
        """``residual += gradient`` in place; returns the residual, which is now the step's acc."""
        if self._residual is None:
            self._residual = gradient.copy()
            return self._residual
        if isinstance(self._residual, np.ndarray) and namespace(gradient) is not np:  # restored on the host
            self._residual = namespace(gradient).asarray(self._residual)
        if self._residual.dtype.itemsize < gradient.dtype.itemsize:  # never the other way: it would lose bits
            self._residual = self._residual.astype(gradient.dtype)
        self._residual += gradient
        return self._residual

    def consume(self, sent: SparseVector | Array) -> None:
        """``residual -= sent`` in place. Where a value that was sent is not finite, nothing of it is kept: Inf - Inf
        would poison every later step."""
        assert self._residual is not None, "consume follows accumulate"
        if isinstance(sent, SparseVector):
            kernels.of(self._residual).subtract(self._residual, sent.indices, sent.values)
        else:
            with np.errstate(invalid="ignore"):
                self._residual -= sent
            self._residual[~namespace(sent).isfinite(sent)] = 0
