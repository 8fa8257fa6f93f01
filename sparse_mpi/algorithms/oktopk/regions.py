"""Ok-Topk's regions: who owns which indices, and how results move to where there are fewer."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import namespace, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.comm.renumbered import Rotated
from sparse_mpi.sparse import SparseVector
from sparse_mpi.wire import decode, encode


def draw_regions(selected: SparseVector, comm: Comm | Rotated) -> np.ndarray:
    """Boundaries ``(P + 1,)`` int64 that cut all selections about equally.

    Every rank proposes what would cut its own selection into P equal counts; the mean of the proposals is taken.
    """
    cuts = namespace(selected.indices).arange(1, comm.size) * selected.nnz // comm.size
    ends = np.append(to_host(selected.indices[cuts]).astype(np.int64), selected.size)
    return np.concatenate([[0], comm.allreduce(ends, control=True) // comm.size])


def balance(
    kept: SparseVector, counts: np.ndarray, regions: np.ndarray, ring: Comm | Rotated
) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Move surplus entries to neighbours, order kept, until every rank holds an equal share.

    Returns what this rank holds then, how many every rank holds, and in which regions these lie.
    """
    ends = np.cumsum(counts)
    shares = np.arange(ring.size + 1) * ends[-1] // ring.size

    def overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
        return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)

    rank, starts = ring.rank, ends - counts
    leaving = overlap(starts[rank], ends[rank], shares[:-1], shares[1:])
    coming = overlap(shares[rank], shares[rank + 1], starts, ends)
    rows, _ = ring.alltoallv(encode(kept), leaving, expected=coming)
    first = np.minimum(np.searchsorted(ends, shares[:-1], side="right"), ring.size - 1)
    last = np.minimum(np.searchsorted(ends, shares[1:], side="left"), ring.size - 1)
    wider = np.stack([regions[first, 0], regions[np.maximum(first, last), 1]], axis=1)
    return decode(rows, kept.size, kept.values.dtype), np.diff(shares), wider
