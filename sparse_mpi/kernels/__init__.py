"""The passes over the dense vector, once for each kind of memory. `of` picks the kernel set for an array."""

from __future__ import annotations

import importlib.util
import math
from functools import cache

import numpy as np

from sparse_mpi.arrays import Array, is_device, namespace
from sparse_mpi.kernels.base import Kernels, bits_type, magnitude_bits

SMALL = 1 << 14  # entries up to which ordering them all costs less than looking through the bins of a histogram
SAMPLED = 1 << 20  # entries from which on a sample tells enough to be worth taking
STRIDE = 257  # one entry in so many is sampled; prime, to keep out of step with the rows of the tensors


def of(x: Array) -> Kernels:
    """The kernels for ``x``: CUDA's for device memory, Numba's for host memory where Numba is installed, else
    whole-array functions."""
    return _device() if is_device(x) else _host()


def _device() -> Kernels:
    from sparse_mpi.kernels import cuda

    return cuda


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


def accumulate(residual: Array, gradient: Array) -> None:
    """``residual += gradient`` in place, half precision widened on the way; ``residual`` is contiguous."""
    if gradient.dtype.itemsize == 2:
        of(residual).accumulate_select(residual, gradient, np.iinfo(bits_type(residual)).max, 0)
    else:
        residual += gradient


def search(x: Array, k: int, most: int) -> tuple[int, tuple[Array, Array] | None]:
    """A threshold, in magnitude bits, that at least k entries of ``x`` ``(n,)`` reach, and those that reach it.

    Instead of the entries, None where they are more than ``most`` >= k and it is for ties that they cannot be fewer:
    then the threshold is the exact k-th magnitude. Where a sample serves, ``most`` may be exceeded somewhat.
    """
    drawn = _sampled(x, k)
    if drawn is not None:
        threshold, likely = drawn
        found = of(x).select(x, threshold, likely)
        if found is not None and len(found[0]) >= k:
            return threshold, found
        if found is None and _reach(x, threshold + 1, k - 1):
            return threshold, None
    threshold = _binned(x, k, most)
    return threshold, of(x).select(x, threshold, most)


def kth_magnitude(x: Array, k: int, most: int) -> int:
    """Magnitude bits t such that at least k and, ties aside, at most ``most`` entries of ``x`` have ``|x| >= t``.

    Args:
        x: ``(n,)`` float32 or float64.
        k: 1 <= k <= n.
        most: >= k; ``most = k`` asks for the exact k-th magnitude.
    """
    if len(x) <= SMALL:
        return int(namespace(x).partition(magnitude_bits(x), len(x) - k)[len(x) - k])
    threshold, found = search(x, k, most)
    if found is None or len(found[0]) <= most:
        return threshold
    return int(magnitude_bits(of(x).truncate(*found, k, reuse=True)[1]).min())


def _sampled(x: Array, k: int) -> tuple[int, int] | None:
    """A threshold that by a sample a little more than k entries reach, and how many may at the very most.

    None where ``x`` is too short or k too large for it to pay.
    """
    expected = k / STRIDE
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 3)
    if len(x) < SAMPLED or 8 * rank * STRIDE > len(x):
        return None
    sample = magnitude_bits(x[STRIDE // 2 :: STRIDE])
    sample.partition(len(sample) - rank)
    return int(sample[len(sample) - rank]), math.ceil(STRIDE * (rank + 3 * math.sqrt(rank) + 3))


def _reach(x: Array, threshold: int, most: int) -> bool:
    """Whether no more than ``most`` entries reach the threshold."""
    return threshold > np.iinfo(bits_type(x)).max or of(x).select(x, threshold, most) is not None


def _binned(x: Array, k: int, most: int) -> int:
    """`kth_magnitude` by a radix select from the leading 16 bits down that stops as soon as a bin's edge is good
    enough: one histogram where ``most`` leaves some room, never more than bits/16, after which it is exact."""
    shift = 8 * bits_type(x).itemsize - 1
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
