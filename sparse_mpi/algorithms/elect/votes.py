"""The votes of a rank: which entries it has news of, and what it has said of them before."""

from __future__ import annotations

from sparse_mpi import kernels
from sparse_mpi.arrays import Array, like, namespace
from sparse_mpi.sparse import SparseVector, take

LOOKS = 4  # entries, the largest that a rank has, that it looks at for each vote


def kept(sums: Array, size: int, acc: Array) -> Array:
    """Return ``sums`` of votes ``(size,)`` where ``acc`` is, and of its type; zeros if there are none yet."""
    if len(sums) != size:
        return namespace(acc).zeros(size, acc.dtype)
    return like(sums, acc).astype(acc.dtype, copy=False)


def news_of(largest: SparseVector, told: Array, votes: int) -> SparseVector:
    """Return the votes of a rank: how much an entry differs from what was told of it.

    Of so many entries as a rank has votes, the product of that and the entry itself is largest: its square for an entry
    that has no vote yet.

    Args:
        largest: entries to choose from.
        told: ``(n,)``, what earlier votes for each entry add up to.
        votes: how many there are.
    """
    xp, of = namespace(told), kernels.of(told)
    news = largest.values - told[largest.indices]
    worth = xp.sqrt(xp.abs(news)) * xp.sqrt(xp.abs(largest.values))
    indices, _ = of.truncate(largest.indices, worth, votes)
    chosen = of.contains(indices, largest.indices) & (news != 0)
    return take(largest._replace(values=news), chosen)
