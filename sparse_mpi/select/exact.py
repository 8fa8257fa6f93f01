"""Exact top-k: on a device by one kernel, on the host in one pass behind a partition, a sample or a histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, bits_type, index_dtype, is_device, magnitude_bits
from sparse_mpi.select.base import NOT_ZERO, Selector, accumulate
from sparse_mpi.sparse import NoState, SparseVector, at_least, take, truncate


def top_k(x: Array, k: int) -> SparseVector:
    """Select the k entries of ``x`` ``(n,)`` of largest magnitude; the lower index wins a tie.

    Only entries that reach a threshold are ordered, see `kernels.search`.
    """
    if is_device(x):
        return SparseVector(*kernels.device().top_k(x, k)[:2], len(x))
    threshold, found = kernels.search(x, k, most=k + k // 4)
    if found is not None:
        return truncate(SparseVector(*found, len(x)), k, reuse=True)
    return _first_of_ties(x, k, threshold)


def largest(x: Array, k: int) -> SparseVector:
    """`top_k` without zeros: if fewer than k entries of ``x`` are nonzero, these."""
    if is_device(x):
        indices, values, least = kernels.device().top_k(x, k)
        selected = SparseVector(indices, values, len(x))
        return selected if int(least) else take(selected, selected.values != 0)
    threshold, found = kernels.search(x, k, most=k + k // 4)
    if threshold == 0:  # the k-th magnitude may be zero, and then there is no need to look for ties
        found = kernels.of(x).select(x, NOT_ZERO, k if found is None else len(x))
    if found is not None:
        return truncate(SparseVector(*found, len(x)), k, reuse=True)
    return _first_of_ties(x, k, threshold)


def _first_of_ties(x: Array, k: int, kth: int) -> SparseVector:
    """`top_k`, by parts, where too many entries for memory tie at magnitude bits ``kth``."""
    chosen = np.empty(k, index_dtype(len(x)))
    above = at_least(x, kth + 1, most=k) if kth < np.iinfo(bits_type(x)).max else None
    count = 0 if above is None else above.nnz
    if above is not None:
        chosen[:count] = above.indices
        del above
    part = max(kernels.SMALL, len(x) // 512)
    for lo in range(0, len(x), part):
        tied = np.flatnonzero(magnitude_bits(x[lo : lo + part]) == kth)[: k - count]
        chosen[count : count + len(tied)] = lo + tied
        count += len(tied)
        if count == k:
            break
    chosen.sort()
    return SparseVector(chosen, x[chosen], len(x))


@dataclass(frozen=True)
class Exact(Selector):
    """The k largest magnitudes, of equal ones the lower index; no zeros."""

    def select(self, x: Array, k: int, state: NoState, add: Array | None = None) -> tuple[SparseVector, NoState]:
        accumulate(x, add)
        return largest(x, k), state
