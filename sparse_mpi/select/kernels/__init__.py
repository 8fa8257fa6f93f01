"""The passes over the dense vector, once for each kind of memory. `of` picks the kernel set for an array."""

from __future__ import annotations

import importlib.util
from functools import cache

import numpy as np

from sparse_mpi.arrays import Array, is_device, namespace
from sparse_mpi.select.kernels.base import Kernels
from sparse_mpi.sparse import magnitude_bits

SMALL = 1 << 14  # entries up to which ordering them all costs less than looking through the bins of a histogram


def of(x: Array) -> Kernels:
    """The kernels for ``x``: Numba's for host memory where Numba is installed, else whole-array functions."""
    return _generic() if is_device(x) else _host()


@cache
def _host() -> Kernels:
    if importlib.util.find_spec("numba") is None:
        return _generic()
    from sparse_mpi.select.kernels import cpu

    return cpu


@cache
def _generic() -> Kernels:
    from sparse_mpi.select.kernels import array

    return array


def kth_magnitude(x: Array, k: int, most: int) -> int:
    """Magnitude bits t such that at least k and, ties aside, at most ``most`` entries of ``x`` have ``|x| >= t``.

    A radix select from the leading 16 bits down that stops as soon as a bin's edge is good enough: one histogram pass
    where ``most`` leaves some room, and never more than bits/16 passes, after which t is the exact k-th magnitude.

    Args:
        x: ``(n,)`` float32 or float64.
        k: 1 <= k <= n.
        most: >= k; ``most = k`` asks for the exact k-th magnitude.
    """
    if len(x) <= SMALL:
        return int(namespace(x).partition(magnitude_bits(x), len(x) - k)[len(x) - k])
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
