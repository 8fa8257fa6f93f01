"""ADTopk (HPDC'24, DOI 10.1145/3625549.3658678): small tensors whole by allreduce, every row's top k by allgather.

Costs 2f(P-1)/P words for the f entries of whole tensors and 1.25 to 1.5 (k - f)(P-1) for the others, up to 2 in a plain
step, and 3 ceil(log2 P) messages. Returns the sum of all selections.

Quotas are the same on every rank, so counts and row numbers are not sent: a row's entry is its value and column, one or
two bytes; four in a plain step over a tensor of more than 65,536 elements.

Departs from the published program: one message a step, not two a tensor; columns, not int64 indices; one pass that adds
all messages, not a dense vector for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.arrays import Array
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds
from sparse_mpi.rows import Pattern, spans
from sparse_mpi.select import Selector
from sparse_mpi.select.base import fewest_selected
from sparse_mpi.select.interleaved import Interleaved
from sparse_mpi.sparse import Layout, SparseVector, concatenate, merge, take
from sparse_mpi.wire import Coo, Wire


@dataclass(frozen=True)
class ADTopk(Algorithm):
    """Allreduce the dense tensors, allgather the selected entries of all other rows.

    Args:
        selector: `Interleaved` or `AllDim`; its ``dense`` tensors, and tensors that it selects whole, are allreduced.
        wire: the message format of rows' entries.
    """

    selector: Selector = Interleaved()
    wire: Wire = Coo()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.selector.patterned:
            raise TypeError(
                "selector must be alldim or interleaved in adtopk, whose messages rely on equal counts of every row on "
                f"all ranks, got {self.selector!r}; leave it out, or use algorithm='topka', which takes any"
            )

    @cached_property
    def traits(self) -> Traits:
        return Traits(lossless=self.wire.lossless, accumulates=True, in_default_plans=True)

    def reduce(
        self, acc: Array, k: int, comm: Comm, state: object, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        # Select: the same number of entries of every row on all ranks.
        pattern = self.selector.pattern(k, state)
        selected, state = self.selector.select(acc, k, state, add)
        rows = tuple(tensor for tensor in pattern if not tensor.whole)
        parts, sent = [], selected
        # Allgather the entries of rows: their values, and columns in place of indices.
        if rows:
            packed = self.wire.pack_rows(_part(selected, pattern, False), rows)
            messages = comm.allgather(packed.buffer)
            parts.append(self.wire.unpack_rows(messages, rows, len(acc), acc.dtype))
            sent = packed.vector
        # Allreduce whole tensors, which need no positions.
        if len(rows) < len(pattern):
            whole = _part(selected, pattern, True)
            parts.append(whole._replace(values=comm.allreduce(whole.values)))
            sent = selected if self.wire.lossless or not rows else merge(concatenate([sent, whole]))
        # Merge all that arrived, in rank order.
        return Reduction(merge(concatenate(parts)) if rows else parts[0], sent), state

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        # Count the values of rows to all ranks, and of whole tensors by allreduce.
        pattern = self.selector.longest(layout, k)
        rows = tuple(tensor for tensor in pattern if not tensor.whole)
        entries = sum(tensor.entries for tensor in rows)
        whole = sum(tensor.entries for tensor in pattern) - entries
        values = entries * (ranks - 1) + 2 * whole * (ranks - 1) / ranks
        messages = rounds(ranks) * ((entries > 0) + 2 * (whole > 0))
        return Bound(0, values, messages, 0, self.wire.row_overhead(rows) * (ranks - 1))

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        most = max(k, self.selector.floor(layout)) * ranks
        return fewest_selected(self.selector, k), min(layout.size, most)

    def exact_order(self, layout: Layout, k: int) -> bool:
        # Whole tensors are added by an allreduce
        return not any(tensor.whole for tensor in self.selector.longest(layout, k))


def _part(selected: SparseVector, pattern: Pattern, whole: bool) -> SparseVector:
    parts = []
    for is_whole, tensors in groupby(spans(pattern), lambda span: span[0].whole):
        if is_whole == whole:
            taken = [part for _, part in tensors]
            parts.append(take(selected, slice(taken[0].start, taken[-1].stop)))
    return concatenate(parts)
