"""TopkDSA (SparCML: Renggli et al., SC'19): sparse reduce-scatter, then allgather, dense where that is smaller.

Region q of P equal widths belongs to rank q, which adds up what all ranks selected there. Costs 4k(P-1)/P words when the
selections coincide, up to (2k + n)(P-1)/P when they do not, and P - 1 + ceil(log2 P) messages a rank, and ceil(log2 P)
small ones for the counts. Returns the sum of all selections: the same as TopkA, by another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse_mpi import wire
from sparse_mpi.algorithms.base import Bound, Reduction, rounds
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.select import Selector
from sparse_mpi.select.threshold import Threshold
from sparse_mpi.sparse import Layout, SparseVector, concatenate, equal_boundaries, index_dtype, merge, split_counts


@dataclass(frozen=True)
class TopkDSA:
    """Split by region, add, allgather.

    Args:
        selector: picks the entries to send.
    """

    selector: Selector = Threshold()

    conserves: ClassVar[bool] = True

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """The selector's state."""
        return self.selector.init(layout, k)

    def reduce(self, acc: Array, k: int, comm: Comm, state: Any) -> tuple[Reduction, Any]:
        """``sent`` is this rank's selection."""
        selected, state = self.selector.select(acc, k, state)
        boundaries = equal_boundaries(len(acc), comm.size)
        rows, _ = comm.alltoallv(wire.encode(selected), split_counts(selected, boundaries))
        region = merge(wire.decode(rows, len(acc), acc.dtype))
        message = _encode_region(region, boundaries[comm.rank], boundaries[comm.rank + 1])
        gathered, counts = comm.allgatherv(message)
        return Reduction(_decode_regions(gathered, counts, boundaries, acc), selected), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """The whole selection in the split, where none of it is the rank's own, and then a dense region."""
        width = -(-layout.size // ranks) if ranks > 1 else 0
        pairs = max(k, self.selector.band[1] * k) * (ranks > 1)
        return Bound(pairs, width * (ranks - 1), ranks - 1 + 2 * rounds(ranks), 4 * (ranks - 1))


def _encode_region(region: SparseVector, start: int, stop: int) -> Array:
    """The region's sum as pairs or as dense values, whichever is smaller: ``(m,)`` wire units.

    Pairs are sent only if they are strictly smaller, so a message as long as the dense region *is* the dense region.
    """
    width, values = int(stop - start), region.values
    pairs = wire.encode(region)
    if pairs.nbytes < width * values.itemsize:
        return pairs.reshape(-1)
    dense = namespace(values).zeros(width, values.dtype)
    dense[region.indices - start] = values
    return dense.view(pairs.dtype)


def _decode_regions(gathered: Array, counts: np.ndarray, boundaries: np.ndarray, like: Array) -> SparseVector:
    """All regions one after the other; of a dense region its non-zero elements."""
    xp, n, dtype = namespace(like), len(like), like.dtype
    units = wire.pair_bytes(n, dtype) // gathered.itemsize
    is_dense = counts * gathered.itemsize == np.diff(boundaries) * dtype.itemsize
    if not is_dense.any():
        return wire.decode(gathered.reshape(-1, units), n, dtype)
    parts, at = [], 0
    for start, count, dense in zip(boundaries, counts, is_dense, strict=False):
        message = gathered[at : at + count]
        at += count
        if dense:
            values = xp.ascontiguousarray(message).view(dtype)
            nonzero = xp.flatnonzero(values)
            parts.append(SparseVector((nonzero + start).astype(index_dtype(n)), values[nonzero], n))
        else:
            parts.append(wire.decode(message.reshape(-1, units), n, dtype))
    return concatenate(parts)
