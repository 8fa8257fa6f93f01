"""Clip the mean of all ranks' gradients by its L2 norm, estimated before the reduction.

P independent gradients are about sqrt(P) times as long as their mean, equal ones as long: the norm of a mean does not
follow from the ranks' norms. So each rank sums its entries, with signs hashed from their indices, in 1,024 buckets; the
squares of the sum of all sketches give the squared norm. All ranks then scale their gradients by one factor.

The standard error is 2.2 %, for any gradients and number of ranks. Sketches are added up as whole numbers: every rank
gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_mpi import arrays, kernels
from sparse_mpi.arrays import Array
from sparse_mpi.checks import present
from sparse_mpi.comm import Comm

CHUNK_ELEMENTS = 1 << 17  # elements converted to float64 at a time, few enough to stay in the cache
HEADROOM_BITS = 4  # bits that a sketch's numbers may have above the limit's; with more it takes a second exchange
SHORT_RANKS = 256  # most ranks whose sketches are added up in 32 bits, with a rounding error below 0.1 % of the limit
MAX_EXPONENT = 1000  # largest exponent of a norm, beyond which it may overflow
NOT_FINITE = 1 << 20  # stands for the exponent of a sketch that is not finite, or too large


def sketched(gradients: Sequence[Any], ranks: int) -> np.ndarray:
    """Return this rank's sketch of its gradient, for `clipping_factor`; no communication.

    Args:
        gradients: parts of the gradient, arrays of any library, in the same order on all ranks.
        ranks: P.

    Returns:
        The sum of all parts' sketches, ``(1024,)`` float64; on a single rank the exact norm ``(1,)``.
    """
    found: Any = np.zeros(1)
    for number, gradient in enumerate(gradients):
        # An overflow ends as Inf or NaN, for which `clipping_factor` returns 1: no warning
        arrays.refuse_capture(gradient, "gradient")
        with arrays.on_stream_of(gradient), np.errstate(over="ignore", invalid="ignore"):
            x = arrays.widened(arrays.enter(gradient))
            # Each part has hashes of its own, by its number: equal indices of two parts must not fall together
            found = np.hypot(found, l2_norm(x)) if ranks == 1 else found + kernels.of(x).sketch(x, number)
    return found


def clipping_factor(own: np.ndarray, max_norm: float, comm: Comm) -> float:
    """Return the factor for all ranks' gradients with which their mean is at most ``max_norm`` long.

    It is 1 if the mean is not longer, or a norm is not finite: NaN and Inf are to show in the sum. Collective: one
    allreduce of 4,100 bytes (control), 8,200 above 256 ranks; two more where gradients are huge or not finite.

    Args:
        own: result of `sketched` on this rank.
        max_norm: the norm to clip to.
        comm: all ranks.
    """
    return factor_of(norm_of_mean(own, max_norm, comm), max_norm)


def norm_of_mean(own: np.ndarray, limit: float, comm: Comm) -> float:
    """Return the norm of the mean with this rank's sketch ``own``, precise around ``limit``. Collective."""
    if comm.size == 1:
        return float(own[0])
    # Sketches add up to that of the sum, which is P times as long as the mean: so is the limit
    return _norm_of_sum(own, limit * comm.size, comm) / comm.size


def factor_of(norm: float, max_norm: float) -> float:
    """Return the factor that clips ``norm`` to ``max_norm``; 1 for a norm that is not finite."""
    return max_norm / norm if max_norm < norm < math.inf else 1.0


def scaled(gradient: Array, factor: float) -> Array:
    return gradient if factor == 1 else gradient * factor


def l2_norm(x: Array) -> float:
    """Return the L2 norm of ``x`` ``(n,)``, added up in float64 in an order that depends on n alone."""
    total = 0.0
    for start in range(0, len(x), CHUNK_ELEMENTS):
        wide = x[start : start + CHUNK_ELEMENTS].astype("float64")
        wide *= wide  # astype has copied: this is the copy's own memory
        total += float(wide.sum())
    return math.sqrt(total)


def _norm_of_sum(own: np.ndarray, limit: float, comm: Comm) -> float:
    """Return the estimated norm of all ranks' sum, precise around ``limit``; Inf if it has none."""
    # All ranks know the limit: with an exponent that follows from it one exchange is enough as a rule
    exponent = math.frexp(limit)[1] + HEADROOM_BITS
    norm = _norm_below(exponent, own, comm)
    if norm is None:  # some rank's sketch is larger than that: let the largest decide
        exponent = int(comm.allreduce(np.array(_exponent(own), np.int64), "max", control=True))
        norm = _norm_below(exponent, own, comm) if exponent < NOT_FINITE else math.inf
    return present(norm, "an exponent that all ranks agreed on must hold every sketch")


def _norm_below(exponent: int, own: np.ndarray, comm: Comm) -> float | None:
    """Return the norm of the sum of all sketches, or None if one has a number of 2^exponent or more.

    Numbers are rounded to multiples of the least power of two for which the sum fits into 32 bits, or 64.
    """
    kind = np.int32 if comm.size <= SHORT_RANKS else np.int64
    bits = np.iinfo(kind).bits - 2  # bits of the magnitude of a sum
    # The sum of P numbers has up to log2 P bits more than each, and so has the unit
    unit = exponent - bits + (comm.size - 1).bit_length()
    fits = _exponent(own) <= exponent
    # A rank whose sketch does not fit takes part with zeros, and is counted in the last number
    whole = np.rint(np.ldexp(own if fits else np.zeros_like(own), -unit)).astype(kind)
    *summed, misfits = comm.allreduce(np.append(whole, not fits), control=True).tolist()
    if misfits:
        return None
    squares = math.fsum(math.ldexp(number, -bits) ** 2 for number in summed)  # independent of the order
    return math.ldexp(math.sqrt(squares), bits + unit)


def _exponent(own: np.ndarray) -> int:
    largest = float(np.abs(own).max())
    exponent = math.frexp(largest)[1]
    return exponent if math.isfinite(largest) and exponent <= MAX_EXPONENT else NOT_FINITE
