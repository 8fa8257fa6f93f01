"""What a kernel set offers. Every set returns the same bits for the same input."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from sparse_mpi.arrays import Array


def bits_type(x: Array) -> np.dtype:
    """The integers that hold the magnitudes of ``x``: int64 for float64, int32 for narrower ones, which are widened."""
    return np.dtype(np.int64 if x.dtype == np.float64 else np.int32)


def index_dtype(size: int) -> np.dtype:
    """int32 as long as it can hold every index of a vector of length ``size``, else int64."""
    return np.dtype(np.int32 if size <= 2**31 - 1 else np.int64)


def magnitude_bits(x: Array) -> Array:
    """|x| as integers that order like magnitudes, with Inf above every number and NaN above Inf.

    The bit pattern without its sign: int32 for float32, int64 for float64. Comparing it vectorises, and a non-finite
    entry is never lost in a comparison.
    """
    return x.view(bits_type(x)) & np.iinfo(bits_type(x)).max


class Moments(NamedTuple):
    """Sums, in float64, over those entries of a vector whose magnitude reaches a threshold."""

    entries: int
    total: float  # of |x|
    squares: float  # of x^2
    logs: float  # of ln |x|, over the entries that are not zero
    nonzero: int
    largest: float  # |x|, 0 where there is none


class Kernels(Protocol):
    """Passes over a dense vector ``x`` ``(n,)``, contiguous or not; thresholds are `magnitude_bits`.

    float32 and float64 everywhere. `count`, `histogram`, `select` and `moments` take half precision in ``x`` too, and
    `accumulate_select` in ``gradient``, as if it had been widened to float32 first, but without that copy: float16, or
    bfloat16 as its bit patterns in uint16, the type that NumPy and CuPy have for it.
    """

    def count(self, x: Array, thresholds: np.ndarray) -> np.ndarray:
        """How many entries reach each of the ascending ``thresholds`` ``(t,)``: ``(t,)`` int64, on the host."""

    def histogram(self, x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
        """Of the entries whose magnitude bits start with ``prefix`` (``bits >> shift == prefix``), how many have
        which next ``width`` bits: ``(2**width,)`` int64, on the host."""

    def select(self, x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
        """Indices ``(nnz,)`` ascending and values ``(nnz,)`` of the entries whose magnitude bits are at least
        ``threshold``; None as soon as there are more than ``most`` of them."""

    def accumulate_select(
        self, residual: Array, gradient: Array, threshold: int, most: int
    ) -> tuple[Array, Array] | None:
        """``residual += gradient`` in place, all of it, and what `select` then finds in ``residual``, which is
        contiguous."""

    def top_k_rows(self, matrix: Array, k: int) -> tuple[Array, Array]:
        """The k largest magnitudes of each row of ``matrix`` ``(rows, columns)``, 1 <= k <= columns, of equal ones
        those of lower column: columns ``(rows, k)`` int32 ascending in each row, and values ``(rows, k)``."""

    def to_bfloat16(self, x: Array) -> Array:
        """``x``, float32 or float64, rounded to float32 and then to bfloat16, ties to even: bit patterns in uint16
        ``(n,)``. What is too large becomes Inf, NaN stays NaN."""

    def moments(self, x: Array, threshold: int) -> Moments:
        """Of the entries whose magnitude bits are at least ``threshold``. The order of summation is each set's own:
        alone among the kernels, sets agree to rounding only."""

    def add(self, x: Array, indices: Array, values: Array) -> None:
        """``x[indices] += values`` in place; ``indices`` are distinct."""

    def subtract(self, x: Array, indices: Array, values: Array) -> None:
        """``x[indices] -= values`` in place, but 0 where the value is not finite; ``indices`` are distinct."""

    def merge(self, indices: Array, values: Array, size: int) -> tuple[Array, Array]:
        """The distinct ``indices``, ascending, and for each the sum of its ``values``, added in the order in which
        they stand; ``indices`` lie in ``[0, size)`` in any order."""

    def truncate(self, indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
        """Of these pairs, in ascending order of their indices, the k >= 1 of largest magnitude, of equal ones those
        of lower index; all if there are no more than k. ``reuse`` allows to overwrite the arguments."""

    def contains(self, indices: Array, sought: Array) -> Array:
        """For each of ``sought`` ``(m,)`` whether it is among ``indices``, both ascending: a boolean mask ``(m,)``."""
