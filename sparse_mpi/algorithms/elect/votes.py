"""A rank's votes: the changes of its largest entries since its earlier votes for them."""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, fractions, like, namespace
from sparse_mpi.sparse import SparseVector

CANDIDATES = 4  # largest entries among which a rank looks for each vote, at most


def vote_sum_like(acc: Array, vote_sum: Array, size: int) -> Array:
    """Return a sum of votes ``(size,)`` in the library and dtype of ``acc``; zeros before the first step."""
    if len(vote_sum) != size:
        return namespace(acc).zeros(size, acc.dtype)
    return like(vote_sum, acc).astype(acc.dtype, copy=False)


def candidates_for(votes: int, size: int, ranks: int) -> int:
    """Return how many of the largest entries a rank looks among: the fewer ranks, the more of these are elected."""
    return min(max(2, min(CANDIDATES, ranks - 1)) * votes, size)


def may_vote(candidates: SparseVector, place: int, ranks: int, share: float) -> Array:
    """Return the mask ``(m,)`` of ``candidates`` for which this rank may vote where ranks divide the entries.

    A rank may vote for a ``share`` of all indices, and for each index some rank may, which is at its turn. NaN and Inf
    are always in the mask: they must show in the sum.
    """
    offsets = (fractions(candidates.indices) + np.uint32((place << 16) // ranks)) & np.uint32(0xFFFF)
    finite = namespace(candidates.values).isfinite(candidates.values)
    return (offsets < np.uint32(round(share * (1 << 16)))) | ~finite


def with_largest(elected: Array, numbers: Array, values: Array, quota: int) -> Array:
    """Return ``elected`` ``(m,)`` and the largest others of ``numbers`` up to a ``quota``; all of them ascend."""
    passes, xp = kernels.of(values), namespace(values)
    others = ~passes.contains(elected, numbers)
    more, _ = passes.truncate(numbers[others], values[others], quota - len(elected))
    return xp.sort(xp.concatenate([elected, more]))


def completed(
    numbers: Array, values: Array, counts: np.ndarray, quotas: np.ndarray, firsts: np.ndarray
) -> tuple[Array, Array]:
    """Return as many entries of each rank as its quota: where there are fewer, its first others, with value 0.

    ``numbers`` and ``values`` ``(m,)`` are ``counts`` ``(P,)`` of each rank; they ascend from ``firsts`` ``(P,)``.
    """
    lacking = (quotas - counts).tolist()
    if not any(lacking):
        return numbers, values
    xp, begin, parts = namespace(numbers), 0, []
    for first, count, lacks in zip(firsts.tolist(), counts.tolist(), lacking, strict=True):
        own, of_own = numbers[begin : begin + count], values[begin : begin + count]
        begin += count
        # All places are taken up to the entry before which ``lacks`` others lie.
        lead = int((own - first - xp.arange(count) < lacks).sum()) if lacks else 0
        every, zeros = xp.arange(first, first + lead + lacks, dtype=own.dtype), xp.zeros(lead + lacks, values.dtype)
        zeros[own[:lead] - first] = of_own[:lead]
        parts += [(every, zeros), (own[lead:], of_own[lead:])]
    completed, of_completed = map(xp.concatenate, zip(*parts, strict=True))
    return completed, of_completed
