"""The passes over the dense vector, once for each kind of memory. `of` picks the kernel set for an array."""

from __future__ import annotations

import importlib.util
import math
from functools import cache

import numpy as np

from sparse_mpi.arrays import Array, is_device, namespace
from sparse_mpi.kernels.base import Kernels, magnitude_bits

SMALL = 1 << 14  # entries up to which ordering them all costs less than looking through the bins of a histogram
SAMPLED = 1 << 20  # entries from which on a sample tells enough to be worth taking
STRIDE = 257  # one entry in so many is sampled; prime, to keep out of step with the rows of the tensors


def of(x: Array) -> Kernels:
    """The kernels for ``x``: Numba's for host memory where Numba is installed, else whole-array functions."""
    return _generic() if is_device(x) else _host()


@cache
def _host() -> Kernels:
    if importlib.util.find_spec("numba") is None:
        return _generic()
    from sparse_mpi.kernels import cpu

    return cpu


@cache
def _generic() -> Kernels:
    from sparse_mpi.kernels import array

    return array


def candidates(x: Array, k: int) -> tuple[Array, Array] | None:
    """Indices ascending and values of at least k entries of ``x`` ``(n,)``, the k largest magnitudes among them.

    One selection pass, at a magnitude that a sample puts a little below the k-th. None where the sample misled (many
    ties, values that keep its stride), or where ``x`` is too short or k too large for it to pay.
    """
    expected = k / STRIDE
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if len(x) < SAMPLED or 8 * rank * STRIDE > len(x):
        return None
    sample = magnitude_bits(x[STRIDE // 2 :: STRIDE])
    bound = int(namespace(x).partition(sample, len(sample) - rank)[len(sample) - rank])
    found = of(x).select(x, bound, most=2 * rank * STRIDE)
    return None if found is None or len(found[0]) < k else found


def kth_magnitude(x: Array, k: int, most: int) -> int:
    """Magnitude bits t such that at least k and, ties aside, at most ``most`` entries of ``x`` have ``|x| >= t``.

    The exact one of the `candidates`. Failing those, a radix select from the leading 16 bits down that stops as soon
    as a bin's edge is good enough: one histogram pass where ``most`` leaves some room, and never more than bits/16
    passes, after which t is the exact k-th magnitude.

    Args:
        x: ``(n,)`` float32 or float64.
        k: 1 <= k <= n.
        most: >= k; ``most = k`` asks for the exact k-th magnitude.
    """
    if len(x) <= SMALL:
        return int(namespace(x).partition(magnitude_bits(x), len(x) - k)[len(x) - k])
    found = candidates(x, k)
    if found is not None:
        bits = magnitude_bits(found[1])
        return int(namespace(x).partition(bits, len(bits) - k)[len(bits) - k])
    shift = 8 * x.itemsize - 1
    prefix, above = 0, 0
    while shift > 0:
        width = min(16, shift)
        counts = of(x).histogram(x, shift, prefix, width)
        at_least = above + np.cumsum(counts[::-1])[::-1]  # entries at or above each bin's lower edge
        chosen = int(np.searchsorted(-at_least, -k, side="right")) - 1
        shift -= width
        prefix = (prefix << width) + chosen
        if at_least[chosen] <= most:
            break
        above = int(at_least[chosen] - counts[chosen])
    return prefix << shift
