"""Ok-Topk's split and reduce: every rank gets the sum of all selections in its own region.

In one stage, P - 1 messages a rank and each entry sent once; or in stages of few messages, with entries forwarded.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.renumbered import Rotated
from sparse_mpi.sparse import SparseVector, merge, split_counts, subtract
from sparse_mpi.wire import Packed, Wire, regions_of


def split_reduce(
    selected: SparseVector, boundaries: np.ndarray, radix: int | None, wire: Wire, comm: Comm | Rotated
) -> tuple[SparseVector, SparseVector]:
    """The sum in this rank's region, and this rank's part in the sums of all regions.

    Args:
        selected: this rank's selection.
        boundaries: ``(P + 1,)`` int64, region q is ``[boundaries[q], boundaries[q + 1])``.
        radix: groups in which a stage divides the ranks; None: as many as there are ranks.
        wire: the message format. What a stage's rounding takes is no part of the sums, and owed by whoever rounded.
    """
    first, last = 0, comm.size
    held, part = selected, None
    while part is None or last - first > 1:
        groups = divided(first, last, radix)
        packed = wire.pack(held, split_counts(held, boundaries[groups]), regions_of(boundaries[groups]))
        mine = int(np.searchsorted(groups, comm.rank, side="right")) - 1
        rows, counts = _exchange(packed, groups, mine, comm)
        if part is None:
            part = packed.vector
        elif not wire.lossless:
            part = subtract(part, subtract(held, packed.vector))
        first, last = int(groups[mine]), int(groups[mine + 1])
        region = np.tile([boundaries[first], boundaries[last]], (len(counts), 1))
        held = merge(wire.unpack(rows, counts, region, held.size, held.values.dtype))
    return held, part


def divided(first: int, last: int, radix: int | None) -> np.ndarray:
    """Boundaries of the groups, as equal as can be, into which a stage divides ranks ``first`` to ``last - 1``."""
    number = min(radix or last - first, last - first)
    return first + np.arange(number + 1) * (last - first) // number


def stages(ranks: int, radix: int | None) -> list[tuple[int, int]]:
    """Of each stage: the most messages a rank sends, and the most selections that what it holds is the sum of."""
    found, merged = [], 1
    while ranks > 1:
        number = min(radix or ranks, ranks)
        found.append((number - 1, merged))
        merged *= 2 * number - 1 if ranks % number else number
        ranks = -(-ranks // number)
    return found


def _exchange(packed: Packed, groups: np.ndarray, mine: int, comm: Comm | Rotated) -> tuple[Array, np.ndarray]:
    """A stage: the rows that this rank has to add up, in rank order of who sent them, and how many each sent.

    The ranks of a group share out its message of each rank outside: whoever stands at the sender's place in line takes
    it, and the first also that of the last of a group longer by one.
    """
    if len(groups) == comm.size + 1:
        return comm.alltoallv(packed.buffer, packed.lengths)
    ends = np.cumsum(packed.lengths)
    messages = [packed.buffer[end - count : end] for count, end in zip(packed.lengths, ends, strict=True)]
    number, place, width = len(messages), comm.rank - groups[mine], groups[mine + 1] - groups[mine]
    came = {comm.rank: messages[mine]}
    for step in range(1, number):
        there, back = (mine + step) % number, (mine - step) % number
        dest = int(groups[there] + place % (groups[there + 1] - groups[there]))
        source, *more = [*range(groups[back] + place, groups[back + 1], width)] or [None]
        came[source] = comm.sendrecv(messages[there], dest, source)
        for late in more:
            came[late] = comm.sendrecv(packed.buffer[:0], None, late)
    arrived = [came[source] for source in sorted(source for source in came if source is not None)]
    return namespace(packed.buffer).concatenate(arrived), np.array([len(rows) for rows in arrived])
