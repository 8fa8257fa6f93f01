"""Kernels: passes over dense vectors, pairs and messages, one kernel set for each kind of memory.

`of` picks the kernel set for an array; `search` finds thresholds on the host, `kth_magnitude` also on a device.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from functools import cache

import numpy as np

from sparse_mpi.arrays import Array, bits_type, is_device, magnitude_bits
from sparse_mpi.kernels.base import DeviceKernels, HostKernels, Kernels, MalformedMessage
from sparse_mpi.kernels.heap import keep_scratch

SMALL, SMALL_ON_HOST = 1 << 14, 1 << 18  # entries up to which a partition of all is cheaper than histograms
SAMPLED = 1 << 20  # entries from which on a sample is precise enough to be worth taking
STRIDE = 257  # entries for each sampled one; a prime, so as not to sample the same columns of every row


def of(x: Array) -> Kernels:
    """Return CUDA's kernels for device memory, else the `host`'s."""
    return host() if isinstance(x, np.ndarray) else device()


def device() -> DeviceKernels:
    from sparse_mpi.kernels import cuda

    return cuda


@cache
def host() -> HostKernels:
    """Return Numba's kernels, or whole-array ones if Numba cannot be imported."""
    keep_scratch()
    if importlib.util.find_spec("numba") is None:
        return _generic()
    try:
        from sparse_mpi.kernels import cpu
    except ImportError as error:  # most often a Numba that does not know this NumPy yet
        text = f"Numba cannot be imported, NumPy is used instead and is slower: {error}; install one that fits NumPy"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return _generic()
    return cpu


@cache
def _generic() -> HostKernels:
    from sparse_mpi.kernels import array

    return array


def check_indices(indices: Array, counts: np.ndarray, regions: np.ndarray, beyond: int = 1) -> None:
    """Raise `MalformedMessage` unless the ``indices`` of each message ascend within the span of all ``regions``.

    Indices on a device are not checked, because the host would have to wait.

    Args:
        indices: ``(nnz,)``, indices of all messages.
        counts: ``(m,)``, each message's number of indices.
        regions: ``(m, 2)`` int64, start and stop of each message's region.
        beyond: difference between a stop and the greatest index of its region.
    """
    if not len(indices) or not isinstance(indices, np.ndarray):
        return
    number = host().misplaced(indices, np.asarray(counts, np.int64), regions, beyond)
    if number >= 0:
        low, high = int(regions[:, 0].min()), int(regions[:, 1].max()) - beyond
        raise MalformedMessage(number, len(counts), f"its indices do not ascend from {low} to {high} at most")


def search(x: Array, k: int, most: int) -> tuple[int, tuple[Array, Array] | None]:
    """Return a threshold, in magnitude bits, that at least k entries of ``x`` ``(n,)``, on the host, reach, and these.

    The entries are None if ties make more than ``most`` >= k reach the threshold, then the exact k-th magnitude. With a
    sampled threshold, somewhat more than ``most`` may be returned.
    """
    if len(x) <= SMALL_ON_HOST:
        at = min(len(x) - k, len(x) - 1)  # k may be 0
        threshold = int(np.partition(magnitude_bits(x), at)[at])
        return threshold, host().select(x, threshold, most)
    # Long vectors: try the threshold that a sample gives, one pass in place of two.
    drawn = _sampled(x, k)
    if drawn is not None:
        threshold, likely = drawn
        found = host().select(x, threshold, likely)
        if found is not None and len(found[0]) >= k:
            return threshold, found
        # Too many entries. If fewer than k lie above the threshold, the surplus ties at it, which is then exact.
        above = min(threshold + 1, int(np.iinfo(bits_type(x)).max))
        if found is None and host().select(x, above, k - 1) is not None:
            return threshold, None
    # Where samples misled, build histograms.
    threshold = _binned(x, k, most)
    return threshold, host().select(x, threshold, most)


def kth_magnitude(x: Array, k: int) -> int:
    """Return the magnitude bits of the k-th largest entry of ``x`` ``(n,)``, float32 or float64, 1 <= k <= n."""
    if is_device(x):
        return int(device().top_k(x, k)[2])
    threshold, found = search(x, k, most=k)
    if found is None or len(found[0]) <= k:
        return threshold
    return int(host().truncate_least(*found, k, reuse=True)[2])


def _sampled(x: Array, k: int) -> tuple[int, int] | None:
    """Return a threshold that little more than k entries reach, by a strided sample, and the most that may reach it.

    Both allow for three standard deviations. None if a sample would not pay.
    """
    expected = k / STRIDE
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 3)
    if len(x) < SAMPLED or 8 * rank * STRIDE > len(x):
        return None
    sample = magnitude_bits(x[STRIDE // 2 :: STRIDE])
    sample.partition(len(sample) - rank)
    return int(sample[len(sample) - rank]), math.ceil(STRIDE * (rank + 3 * math.sqrt(rank) + 3))


def _binned(x: Array, k: int, most: int) -> int:
    """Find the threshold of `kth_magnitude` by radix select, 16 bits a pass, in one pass if ``most`` allows."""
    shift = 8 * bits_type(x).itemsize - 1
    prefix, above = 0, 0  # known leading bits of the threshold; number of entries above this prefix
    while shift > 0:
        # Count the entries with this prefix by their next bits, and pick the bin that holds the k-th largest.
        width = min(16, shift)
        counts = host().histogram(x, shift, prefix, width)
        at_least = counts[::-1].cumsum()[::-1]
        chosen = int(np.count_nonzero(at_least >= k - above)) - 1
        reached, inside = int(at_least[chosen]), int(counts[chosen])
        shift -= width
        prefix = (prefix << width) + chosen
        # Its lower edge is the threshold, unless too many entries reach it: then look into this bin alone.
        if above + reached <= most:
            break
        above += reached - inside
    return prefix << shift
