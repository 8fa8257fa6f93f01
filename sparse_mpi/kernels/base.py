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


SCALED = 128  # neighbouring values of a message that share a scale in `Kernels.to_int8`


# Packed messages that stand one after the other in a buffer of bytes: a structured array (m,), m >= 1,
# on the host.
#
# A message is a number, its values' codes, their scales, the low bits of its indices and their high bits. An index
# counts from the start of the message's region. Its low bits, `shift` of them, stand side by side. Its high part h is
# one bit, set at position h + i for the i-th entry where the section is `spread`, else at h. Bits fill bytes from the
# lowest up. A message of every index of its region has neither section, one without entries nothing at all.
MESSAGE = np.dtype(
    [
        ("entries", np.int64),
        ("first", np.int64),  # entries of the messages before
        ("start", np.int64),  # of the region
        ("shift", np.int64),
        ("spread", np.int64),  # 1 or 0
        ("span", np.int64),  # bits of the high section
        ("block", np.int64),  # scales of the messages before
        ("head", np.int64),  # where in the buffer the number is, entries - 1 in little endian,
        ("values", np.int64),  # the codes,
        ("scales", np.int64),  # the scales, float32,
        ("lows", np.int64),  # the low bits,
        ("highs", np.int64),  # and the high ones
        ("end", np.int64),  # where in the buffer the message ends
    ]
)


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

    def to_float16(self, x: Array) -> Array:
        """``x``, float32, rounded to float16, ties to even; what is finite and too large becomes 65504."""

    def to_int8(self, x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
        """``x`` ``(n,)`` float32 in steps of a scale: codes ``(n,)`` int8, and scales ``(b,)`` float32 of the blocks
        ``[edges[i], edges[i + 1])``, the largest finite magnitude over 127; ``edges`` ``(b + 1,)``, on the host, are no
        more than `SCALED` apart and no block is empty. What lies between two steps is rounded up with a probability
        of its distance from the lower one, by 24 bits that are a hash of index and value. Inf and NaN become -128."""

    def from_int8(self, codes: Array, scales: Array, edges: np.ndarray) -> Array:
        """Code times scale ``(n,)`` float32; NaN for -128."""

    def write_messages(self, messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
        """These `MESSAGE`, ``(bytes,)`` uint8, of ascending ``indices``, ``codes`` of 1, 2, 4 or 8 bytes each and
        float32 ``scales``."""

    def read_messages(self, messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
        """What `write_messages` was given: indices of a vector of that ``size``, codes as bytes, and scales."""
