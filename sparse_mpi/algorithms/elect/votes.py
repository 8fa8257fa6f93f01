"""The votes of a rank: which entries it has news of, and what it has said of them before."""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.sparse import SparseVector, take

LOOKS = 4  # entries, the largest that a rank has, that it looks at for each vote


def kept(sums: Array, size: int, acc: Array) -> Array:
    """Return ``sums`` of votes ``(size,)`` where ``acc`` is, and of its type; zeros if there are none yet."""
    if len(sums) != size:
        return namespace(acc).zeros(size, acc.dtype)
    return like(sums, acc).astype(acc.dtype, copy=False)


def looked_at(votes: int, size: int) -> int:
    """Return among how many of its ``size`` entries, the largest, a rank looks for those that it votes for."""
    return min(LOOKS * votes, size)


def news_of(largest: SparseVector, told: Array, votes: int) -> SparseVector:
    """Return the votes of a rank: by how much each of these entries differs from what was told of it.

    They are for the entries with the largest product of news and value: its square where nothing was told yet. Roots
    are multiplied, so that nothing overflows.

    Args:
        largest: entries to choose from.
        told: ``(n,)``, what earlier votes for each entry add up to.
        votes: how many there are at most. Entries without news have none.
    """
    xp = namespace(told)
    with np.errstate(invalid="ignore"):  # infinite, as it was told to be
        news = largest.values - kernels.of(told).gather(told, largest.indices)
        worth = xp.sqrt(xp.abs(news)) * xp.sqrt(xp.abs(largest.values))
    chosen, _ = kernels.of(told).truncate(xp.arange(largest.nnz, dtype=np.int32), worth, votes)
    return take(largest._replace(values=news), chosen[news[chosen] != 0])
