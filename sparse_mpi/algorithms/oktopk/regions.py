"""Ok-Topk's regions (Li & Hoefler, PPoPP'22): which rank owns which indices, and how results are balanced."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from sparse_mpi.arrays import namespace, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import decode, encode


def draw_regions(selected: SparseVector, comm: Comm) -> np.ndarray:
    """Agree on the boundaries that cut the selections of all ranks about equally; one allreduce of control.

    Every rank proposes the boundaries that would cut its own selection into P equal counts, and the mean of all
    proposals is taken.

    Args:
        selected: this rank's selection.
        comm: all ranks.

    Returns:
        ``(P + 1,)`` int64: region q is ``[boundaries[q], boundaries[q + 1])``, the same on every rank.
    """
    cuts = namespace(selected.indices).arange(1, comm.size) * selected.nnz // comm.size
    ends = np.append(to_host(selected.indices[cuts]).astype(np.int64), selected.size)
    return np.concatenate([[0], comm.allreduce(ends, control=True) // comm.size])


def tolerated(mean: float, trigger: float) -> float:
    """Return how many entries a rank may have where ranks have ``mean`` of them, before they are shared out anew.

    It is ``trigger`` times as many as chance gives to some rank, three standard deviations above the mean: ranks that
    have one entry on average have four now and then, whatever their regions.
    """
    return trigger * (mean + 3 * sqrt(mean))


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


def _overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
    """Return the lengths ``(P,)`` int64 of the intersections of one interval with P others."""
    return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)
