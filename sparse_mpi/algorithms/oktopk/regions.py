"""Ok-Topk's regions (Li & Hoefler, PPoPP'22): which rank owns which indices, and how results are balanced."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.comm.quantiles import pooled
from sparse_mpi.sparse import SparseVector, equal_boundaries
from sparse_mpi.wire import SizeBound, decode, encode


def draw_regions(selected: SparseVector, k: int, comm: Comm) -> np.ndarray:
    """Agree on the boundaries that cut the selections of all ranks about equally; one allgather of control.

    They are quantiles of all selections together, so that no rank receives far more than others wherever the entries
    of each rank are. Ok-Topk's means of each rank's own quantiles are that only where all ranks select alike.

    Args:
        selected: this rank's selection; it may be empty.
        k: entries that ranks want to select, the same on all.
        comm: all ranks.

    Returns:
        ``(P + 1,)`` int64: region q is ``[boundaries[q], boundaries[q + 1])``, the same on every rank.
    """
    pool = pooled(selected.indices, samples(k, comm.size), comm)
    if len(pool.keys) == 0:
        return equal_boundaries(selected.size, comm.size)
    return np.concatenate([[0], pool.quantiles(comm.size), [selected.size]])


def samples(k: int, ranks: int) -> int:
    """Return the number of its indices that a rank sends for regions to be drawn.

    With 64 of each rank the largest region has 1.3 times the mean on 256 ranks, with 8 about twice the mean. Few ranks
    need fewer, and no more than about a quarter of a step's bytes are spent on them, unless a step has very few.
    """
    return min(max(k // ranks, 8), 4 * ranks, 64)


def imbalance_limit(mean: float, trigger: float) -> float:
    """Return the entries that a rank may have where ranks have ``mean`` of them, before they are shared out anew.

    They are ``trigger`` times as many as chance gives to some rank, three standard deviations above the mean: ranks
    that have one entry on average have four now and then, whatever their regions.
    """
    return trigger * (mean + 3 * sqrt(mean))


def reduction_load(added: int, k: int) -> int:
    """Return the load of a rank that added up ``added`` entries, in sixteenths of k, rounded up."""
    return -(-16 * added // k)


def overloaded(loads: np.ndarray, k: int, trigger: float) -> bool:
    """Return True if some rank added up far more entries than others, by the ``loads`` ``(P,)`` of all ranks.

    Far more are ``trigger`` times as many, and at least twice as many, as chance gives to some rank.
    """
    entries = loads * k / 16
    return bool(entries.max() > imbalance_limit(entries.mean(), max(trigger, 2)))


def balance(
    results: SparseVector, counts: np.ndarray, regions: np.ndarray, ring: Comm
) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Move surplus results to other ranks, in the order of indices, until every rank has an equal share of them.

    Every rank knows all counts, so each knows what it sends and receives without asking.

    Args:
        results: this rank's entries of the result, those of its region.
        counts: ``(P,)`` int64, how many entries each rank has.
        regions: ``(P, 2)`` int64, start and stop of the indices among which each rank's entries lie.
        ring: the ranks in the order of their regions.

    Returns:
        This rank's share of the results; how many entries every rank has then, ``(P,)`` int64; and start and stop of
        the indices among which these lie, ``(P, 2)`` int64: of one region or of several neighbouring ones.
    """
    # Number the results of all ranks: rank q has [starts[q], ends[q]), and is to have [shares[q], shares[q + 1]).
    rank, ends = ring.rank, np.cumsum(counts)
    starts = ends - counts
    shares = np.arange(ring.size + 1) * ends[-1] // ring.size

    # Send each rank what this one has of its share, and receive what the others have of this one's.
    leaving = _overlap(starts[rank], ends[rank], shares[:-1], shares[1:])
    arriving = _overlap(shares[rank], shares[rank + 1], starts, ends)
    received, _ = ring.alltoallv(encode(results), leaving, expected=arriving)

    # A share extends from the region of its first entry to that of its last.
    first = np.minimum(np.searchsorted(ends, shares[:-1], side="right"), ring.size - 1)
    last = np.minimum(np.searchsorted(ends, shares[1:], side="left"), ring.size - 1)
    wider = np.stack([regions[first, 0], regions[np.maximum(first, last), 1]], axis=1)
    return decode(received, results.size, results.values.dtype), np.diff(shares), wider


def allgather_bound(message: Callable[[float], SizeBound], result: float, ranks: int, trigger: float) -> SizeBound:
    """Return an upper bound on what a rank sends to balance and gather a result of ``result`` entries.

    A rank either has more than others, moves them as pairs, and then gathers an equal share; or it gathers as many as
    the `imbalance_limit`.

    Args:
        message: returns the bound of a message of that many results.
        result: entries of all ranks.
        ranks: P.
        trigger: see `imbalance_limit`.
    """
    mean = result / ranks
    balanced = message(ceil(mean)) + SizeBound(pairs=mean)
    unbalanced = message(min(imbalance_limit(mean, trigger), result))
    return balanced.max(unbalanced) * (ranks - 1)


def _overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
    """Return the lengths ``(P,)`` int64 of the intersections of one interval with P others."""
    return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)
