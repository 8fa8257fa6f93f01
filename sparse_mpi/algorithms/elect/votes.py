"""A rank's votes: the changes of its largest entries since its earlier votes for them."""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, fractions, like, namespace
from sparse_mpi.sparse import SparseVector

CANDIDATES_PER_VOTE = 4  # largest entries among which a rank looks for each vote


def vote_sum_like(acc: Array, vote_sum: Array, size: int) -> Array:
    """Return a sum of votes ``(size,)`` in the library and dtype of ``acc``; zeros before the first step."""
    if len(vote_sum) != size:
        return namespace(acc).zeros(size, acc.dtype)
    return like(vote_sum, acc).astype(acc.dtype, copy=False)


def candidates_for(votes: int, size: int) -> int:
    return min(CANDIDATES_PER_VOTE * votes, size)


def vote_deltas(candidates: SparseVector, my_vote_sum: Array, votes: int) -> tuple[SparseVector, Array]:
    """Return votes for all ``candidates``, and the ascending positions ``(votes,)`` int32 of the votes to send.

    vote = value - sum of this rank's earlier votes for the entry. Votes with the largest magnitude of vote times value
    are sent; roots are multiplied, which cannot overflow.
    """
    passes = kernels.of(my_vote_sum)
    places, deltas, worth = passes.changes(my_vote_sum, candidates.indices, candidates.values)
    return SparseVector(candidates.indices, deltas, candidates.size), passes.truncate(places, worth, votes)[0]


def may_vote(candidates: SparseVector, place: int, ranks: int, share: float) -> Array:
    """Return the mask ``(m,)`` of ``candidates`` for which this rank may vote where ranks divide the entries.

    A rank may vote for a ``share`` of all indices, and share times P ranks, rounded up or down, for each index. NaN and
    Inf are always in the mask: they must show in the sum.
    """
    offsets = (fractions(candidates.indices) + np.uint32((place << 16) // ranks)) & np.uint32(0xFFFF)
    finite = namespace(candidates.values).isfinite(candidates.values)
    return (offsets < np.uint32(round(share * (1 << 16)))) | ~finite
