"""Ok-Topk's split and reduce (Li & Hoefler, PPoPP'22): every rank gets the sum of all selections in its own region.

One stage takes P - 1 messages a rank, and sends each entry once. Several stages take fewer messages, but forward
entries from rank to rank, adding them up on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from sparse_mpi.algorithms.exchange import WireFormat, exchange, unpack
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.sparse import SparseVector, merge, split_counts, subtract
from sparse_mpi.wire import Packed, regions_of


def split_reduce(
    selected: SparseVector, boundaries: np.ndarray, radix: int | None, wire: WireFormat, comm: Comm
) -> tuple[SparseVector, SparseVector, int]:
    """Send every part of a selection to the rank that owns its region, and add up what arrives in one's own.

    Args:
        selected: this rank's selection.
        boundaries: ``(P + 1,)`` int64, region q is ``[boundaries[q], boundaries[q + 1])`` and owned by rank q.
        radix: groups into which a stage divides the ranks; None: as many as there are ranks, which makes one stage.
        wire: the message format. What a stage's rounding takes away is not in the sums, and stays the debt of the
            rank that rounded.
        comm: the ranks in the order of their regions.

    Returns:
        The sum of all selections in this rank's region; this rank's contribution to the sums of all regions; and how
        many entries it had to add up, in all stages.
    """
    first, last = 0, comm.size  # the ranks that work on the same stretch of indices as this one
    partial, contributed, added = selected, None, 0
    while contributed is None or last - first > 1:
        # Divide these ranks into groups, and cut the partial sums into a message for each group's regions.
        groups = divided(first, last, radix)
        packed = wire.pack(partial, split_counts(partial, boundaries[groups]), regions_of(boundaries[groups]))

        # Exchange: every group collects what lies in its regions. With a group for each rank it is one all-to-all.
        own = int(np.searchsorted(groups, comm.rank, side="right")) - 1
        first, last = int(groups[own]), int(groups[own + 1])
        region = boundaries[[first, last]]
        if len(groups) == comm.size + 1:
            received = exchange(packed, region, wire, comm)
        else:
            received = unpack(*_exchange_groups(packed, groups, own, comm), region, wire, packed.vector)

        # Take what rounding lost out of this rank's contribution, which starts as its whole selection.
        if contributed is None:
            contributed = packed.vector
        elif not wire.lossless:
            contributed = subtract(contributed, subtract(partial, packed.vector))

        # Reduce: add up the messages in the rank order of their senders, and go on within the own group.
        partial, added = merge(received), added + received.nnz
    return partial, contributed, added


def divided(first: int, last: int, radix: int | None) -> np.ndarray:
    """Return the boundaries of the groups into which a stage divides ranks ``first`` to ``last - 1``.

    Returns:
        ``(groups + 1,)`` int64 ascending, with sizes that differ by at most one.
    """
    number = min(radix or last - first, last - first)
    return first + np.arange(number + 1) * (last - first) // number


def stages(ranks: int, radix: int | None) -> list[tuple[int, int]]:
    """Return, for each stage, the most messages a rank sends and the most selections its partial sums add up."""
    exchanges, merged = [], 1
    while ranks > 1:
        number = min(radix or ranks, ranks)
        exchanges.append((number - 1, merged))
        merged *= 2 * number - 1 if ranks % number else number
        ranks = -(-ranks // number)
    return exchanges


def _exchange_groups(packed: Packed, groups: np.ndarray, own: int, comm: Comm) -> tuple[Array, np.ndarray]:
    """Exchange the messages of one stage, see `partners`.

    Args:
        packed: a message for each group.
        groups: ``(groups + 1,)`` int64, boundaries of the groups.
        own: the number of this rank's group.
        comm: the ranks in the order of their regions.

    Returns:
        The messages that this rank has to add up, in the rank order of their senders, and the length of each.
    """
    # Cut the buffer into messages; the one for the own group stays here.
    ends = np.cumsum(packed.lengths)
    messages = [packed.buffer[end - length : end] for length, end in zip(packed.lengths, ends, strict=True)]
    received = {comm.rank: messages[own]}
    for there, dest, sources in partners(groups, comm.rank):
        for to, source in zip_longest([dest], sources):
            message = comm.sendrecv(messages[there], to, source)
            if source is not None:
                received[source] = message
    # Put what arrived in the rank order of its senders.
    in_order = [received[source] for source in sorted(received)]
    return namespace(packed.buffer).concatenate(in_order), np.array([len(message) for message in in_order])


def partners(groups: np.ndarray, rank: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the partners of a rank in each step of a stage.

    Steps rotate: in step i a rank sends to the i-th group after its own one, and receives from the i-th before it. The
    ranks of a group share the work of receiving: of a sender outside, that rank of the group takes the message which
    stands at the sender's position in its own group. If the sender's group is longer by one, the message of its last
    rank goes to the first of this group.

    Args:
        groups: ``(groups + 1,)`` int64, boundaries of the groups, whose sizes differ by at most one.
        rank: of those.

    Yields:
        The group to which the rank sends, the rank of it that takes the message, and those from which messages come:
        none, one or two.
    """
    own = int(np.searchsorted(groups, rank, side="right")) - 1
    number, place, width = len(groups) - 1, rank - groups[own], int(groups[own + 1] - groups[own])
    for step in range(1, number):
        there, back = (own + step) % number, (own - step) % number
        dest = int(groups[there] + place % (groups[there + 1] - groups[there]))
        yield there, dest, list(range(int(groups[back] + place), int(groups[back + 1]), width))
