"""What a kernel set offers. Every set returns the same bits for the same input."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sparse_mpi.arrays import Array


class Kernels(Protocol):
    """Passes over a dense vector ``x`` ``(n,)`` of float32 or float64; see `sparse_mpi.sparse.magnitude_bits`."""

    def histogram(self, x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
        """Of the entries whose magnitude bits start with ``prefix`` (``bits >> shift == prefix``), how many have
        which next ``width`` bits: ``(2**width,)`` int64, on the host."""

    def select(self, x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
        """Indices ``(nnz,)`` ascending and values ``(nnz,)`` of the entries whose magnitude bits are at least
        ``threshold``; None as soon as there are more than ``most`` of them."""

    def accumulate_select(
        self, residual: Array, gradient: Array, threshold: int, most: int
    ) -> tuple[Array, Array] | None:
        """``residual += gradient`` in place, all of it, and what `select` then finds in ``residual``."""

    def subtract(self, x: Array, indices: Array, values: Array) -> None:
        """``x[indices] -= values`` in place, but 0 where the value is not finite; ``indices`` are distinct."""
