"""Exchanges of sparse vectors: with all ranks, and by regions that owners add up.

Regions are Ok-Topk's (Li & Hoefler, PPoPP'22): boundaries, splitting of selections, reduction, balancing of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import zip_longest
from math import ceil, sqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.algorithms.quantiles import pooled
from sparse_mpi.arrays import Array, namespace
from sparse_mpi.comm import Comm
from sparse_mpi.comm.counting import received as checked
from sparse_mpi.sparse import (
    SparseVector,
    equal_boundaries,
    merge,
    regions_of,
    split_counts,
    subtract,
)
from sparse_mpi.wire import Coo, Packed, SizeBound, Wire
from sparse_mpi.wire.packed import KnownCounts, cut_messages

T = TypeVar("T")
MOVED = KnownCounts()  # the format of results that move, of which every rank knows how many come from where


def exchange(packed: Packed, region: np.ndarray, wire: Wire, comm: Comm) -> tuple[SparseVector, np.ndarray | None]:
    """Send each rank its message; return the entries of all ranks in rank order, and `run_lengths`."""
    messages, lengths = comm.alltoallv(packed.buffer, packed.lengths)
    return unpack(messages, lengths, region, wire, packed.vector), run_lengths(lengths, wire)


def run_lengths(lengths: np.ndarray, wire: Wire) -> np.ndarray | None:
    """Return the numbers of entries in messages of ``lengths`` ``(m,)``; None if only contents tell."""
    return lengths if isinstance(wire, Coo) else None


def unpack(messages: Array, lengths: np.ndarray, region: np.ndarray, wire: Wire, like: SparseVector) -> SparseVector:
    """Return the entries, with indices in ``region``, of messages of ``lengths``; values have ``like``'s dtype."""
    return wire.unpack(messages, lengths, region[None].repeat(len(lengths), axis=0), like.size, like.values.dtype)


def doubled(
    held: T, swap: Callable[[T, int | None, int | None], tuple[T, T]], join: Callable[[T, T], T], comm: Comm
) -> T:
    """Combine ``held`` over all ranks by recursive doubling; return the result on every rank.

    Args:
        held: this rank's part.
        swap: sends the part to a rank, if any; returns it as it arrives there, and the part received.
        join: combines the parts of two neighbouring groups of ranks, in their order.
        comm: all ranks. Those beyond a power of two (the core) take part through a partner in the core.
    """
    rank, core = comm.rank, 1 << (comm.size.bit_length() - 1)
    extra = comm.size - core
    # Fold: ranks beyond the core send their part to their partner, and wait for the result.
    if rank >= core:
        swap(held, rank - core, None)
        return swap(held, None, rank - core)[1]
    if rank < extra:
        held = join(held, swap(held, None, rank + core)[1])
    # Double: both partners combine in the same order, that of their ranks, and so have the same bytes.
    gap = 1
    while gap < core:
        mine, other = swap(held, rank ^ gap, rank ^ gap)
        held = join(mine, other) if rank & gap == 0 else join(other, mine)
        gap *= 2
    # Unfold: send the result to the waiting ranks; all return it as it arrives there.
    return swap(held, rank + core if rank < extra else None, None)[0] if extra else held


def draw_regions(selected: SparseVector, k: int, comm: Comm) -> np.ndarray:
    """Agree on boundaries that cut the selections of all ranks about equally; one allgather of control.

    The boundaries ``(P + 1,)`` int64, alike on every rank, are quantiles of all selections, which bounds what a rank
    receives for any distribution. Region q is ``[boundaries[q], boundaries[q + 1])``.
    """
    pool = pooled(selected.indices, samples(k, comm.size), comm)
    if len(pool.keys) == 0:
        return equal_boundaries(selected.size, comm.size)
    return np.concatenate([[0], pool.quantiles(comm.size), [selected.size]])


def samples(k: int, ranks: int) -> int:
    """Return a rank's number of sampled indices to draw regions: at most about a quarter of a step's bytes.

    With 64 samples the largest region has 1.3 times the mean on 256 ranks, with 8 about twice the mean.
    """
    return min(max(k // ranks, 8), 4 * ranks, 64)


def refitted(boundaries: np.ndarray, loads: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Return boundaries that cut ``loads`` equally, without communication.

    A region's load is assumed to be even over the gaps between its results.
    """
    # Find the region in which each rank's share of all loads ends, in units in which shares are whole numbers.
    ranks, ends = len(loads), loads.cumsum() * len(loads)
    shares = int(loads.sum()) * np.arange(1, ranks)
    region = ends.searchsorted(shares, side="right")
    whole = loads[region] * ranks

    # Find the gap of the region in which it ends, and the place inside the gap.
    starts = results.searchsorted(boundaries)
    first, last = starts[region], starts[region + 1]
    gap, part = np.divmod((shares - ends[region] + whole) * (last - first + 1), whole)
    padded = np.concatenate([[0], results, [0]])
    low = np.where(gap > 0, padded[first + gap], boundaries[region])
    high = np.where(gap < last - first, padded[first + gap + 1], boundaries[region + 1])
    return np.concatenate([boundaries[:1], low + (high - low) * part // whole, boundaries[-1:]])


def imbalance_limit(mean: float, trigger: float) -> float:
    """Return a rank's number of entries above which results are balanced.

    It is ``trigger`` times the mean plus three Poisson deviations: chance alone seldom triggers.
    """
    return trigger * (mean + 3 * sqrt(mean))


def reduction_load(added: int, k: int) -> int:
    """Return ``added`` entries as a load: sixteenths of k, rounded up."""
    return -(-16 * added // k)


def uneven(loads: np.ndarray) -> bool:
    each = loads.tolist()
    return 8 * max(each) * len(each) > 9 * sum(each)


def overloaded(loads: np.ndarray, k: int, trigger: float) -> bool:
    each = loads.tolist()
    return max(each) * k / 16 > imbalance_limit(sum(each) * k / 16 / len(each), max(trigger, 2))


def balance(
    results: SparseVector, counts: np.ndarray, regions: np.ndarray, ring: Comm
) -> tuple[SparseVector, np.ndarray, np.ndarray]:
    """Move surplus results to other ranks, in index order, until all have equal shares.

    Args:
        results: this rank's entries of the result, in its region.
        counts: ``(P,)`` int64, entries of each rank.
        regions: ``(P, 2)`` int64, start and stop of the indices of each rank's entries.
        ring: the ranks in the order of their regions.

    Returns:
        The first three arguments afterwards; a region may then span several.
    """
    # Number the results of all ranks: rank q has [starts[q], ends[q]), and is to have [shares[q], shares[q + 1]).
    rank, ends = ring.rank, np.cumsum(counts)
    starts = ends - counts
    shares = np.arange(ring.size + 1) * ends[-1] // ring.size

    # Send each rank its share of this rank's entries, and receive this rank's share from the others.
    leaving = _overlap(starts[rank], ends[rank], shares[:-1], shares[1:])
    arriving = _overlap(shares[rank], shares[rank + 1], starts, ends)
    own = np.repeat(regions[rank : rank + 1], ring.size, axis=0)
    packed, dtype = MOVED.pack(results, leaving, own), results.values.dtype
    lengths = MOVED.lengths_of(arriving, regions, results.size, dtype)
    received, _ = ring.alltoallv(packed.buffer, packed.lengths, expected=lengths)
    moved = MOVED.unpack(received, lengths, regions, results.size, dtype, arriving)

    # A share extends from the region of its first entry to that of its last.
    first = np.minimum(np.searchsorted(ends, shares[:-1], side="right"), ring.size - 1)
    last = np.minimum(np.searchsorted(ends, shares[1:], side="left"), ring.size - 1)
    wider = np.stack([regions[first, 0], regions[np.maximum(first, last), 1]], axis=1)
    return moved, np.diff(shares), wider


def allgather_bound(message: Callable[[float], SizeBound], result: float, ranks: int, trigger: float) -> SizeBound:
    """Return the most that a rank sends to balance and gather ``result`` entries: the larger of two cases.

    Balanced: surplus moved as pairs, then k/P gathered; unbalanced: up to `imbalance_limit` entries gathered.
    """
    mean = result / ranks
    balanced = message(ceil(mean)) + SizeBound(pairs=mean)
    unbalanced = message(min(imbalance_limit(mean, trigger), result))
    return balanced.max(unbalanced) * (ranks - 1)


def _overlap(start: Any, stop: Any, other_start: Any, other_stop: Any) -> np.ndarray:
    return np.maximum(np.minimum(stop, other_stop) - np.maximum(start, other_start), 0)


class _SplitResult(NamedTuple):
    """Messages of a `split`'s last stage, and totals of all stages."""

    received: SparseVector  # message after message, in the rank order of their senders
    lengths: np.ndarray  # (senders,) of these messages, see `Packed.lengths`
    contributed: SparseVector  # this rank's contribution to the sums of all regions
    added: int  # entries that there were to add up, in all stages


def split(selected: SparseVector, boundaries: np.ndarray, radix: int | None, wire: Wire, comm: Comm) -> _SplitResult:
    """Send each part of a selection to its region's owner; the last stage's messages are not added up.

    One stage takes P - 1 messages a rank and sends each entry once; several take fewer messages, but forward entries,
    added up on the way.

    Args:
        selected: this rank's selection.
        boundaries: ``(P + 1,)`` int64, region q is ``[boundaries[q], boundaries[q + 1])`` and owned by rank q.
        radix: groups into which a stage divides the ranks; None: one for each rank, in one stage.
        wire: the message format. Each stage's rounding error stays with the rank that rounds.
        comm: the ranks in the order of their regions.
    """
    first, last = 0, comm.size  # the ranks that work on the same stretch of indices as this one
    partial, came = selected, None
    while came is None or last - first > 1:
        # Divide these ranks into groups, and cut the partial sums into a message for each group's regions.
        groups = divided(first, last, radix)
        single = len(groups) == comm.size + 1  # a group for each rank: all is done in one stage
        if came is not None:
            partial = _added_up(came, boundaries[[first, last]], wire)
        edges = boundaries if single else boundaries[groups]
        packed = wire.pack(partial, split_counts(partial, edges), regions_of(edges))

        # Exchange: every group collects the entries of its regions. With a group for each rank it is one all-to-all.
        own = comm.rank if single else int(groups.searchsorted(comm.rank, side="right")) - 1
        first, last = int(groups[own]), int(groups[own + 1])
        region = edges[own : own + 2]
        if single:
            messages, lengths = comm.alltoallv(packed.buffer, packed.lengths)
        else:
            messages, lengths = _exchange_groups(packed, groups, own, comm)
        received = unpack(messages, lengths, region, wire, packed.vector)

        # Take rounding errors out of this rank's contribution, which starts as its whole selection.
        contributed, added = (packed.vector, 0) if came is None else (came.contributed, came.added)
        if came is not None and not wire.lossless:
            contributed = subtract(contributed, subtract(partial, packed.vector))

        # Go on within the own group, whose messages are added up in the rank order of their senders.
        came = _SplitResult(received, lengths, contributed, added + len(received.indices))
    return came


def _added_up(came: _SplitResult, region: np.ndarray, wire: Wire) -> SparseVector:
    summed = _rows_added(came, region)
    return merge(came.received, run_lengths(came.lengths, wire)) if summed is None else summed


def added_up_loosely(came: _SplitResult, region: np.ndarray, wire: Wire) -> tuple[SparseVector, Array | None]:
    """Return the sum of messages with the gaps, if any, of `Kernels.merge_loosely`."""
    if (summed := _rows_added(came, region)) is not None:
        return summed, None
    indices, values, size = came.received
    lengths = run_lengths(came.lengths, wire)
    indices, values, chosen = kernels.of(values).merge_loosely(indices, values, size, lengths=lengths)
    return SparseVector(indices, values, size), chosen


def _rows_added(came: _SplitResult, region: np.ndarray) -> SparseVector | None:
    width, senders, received = int(region[1] - region[0]), len(came.lengths), came.received
    if not width or len(received.indices) < senders * width:
        return None
    sums = kernels.of(received.values).add_rows(received.values.reshape(senders, width))
    return SparseVector(received.indices[:width], sums, received.size)


@lru_cache(maxsize=64)
def divided(first: int, last: int, radix: int | None) -> np.ndarray:
    """Return the boundaries ``(groups + 1,)`` of equal groups of ranks ``[first, last)``; read-only."""
    number = min(radix or last - first, last - first)
    return first + np.arange(number + 1) * (last - first) // number


def stages(ranks: int, radix: int | None) -> list[tuple[int, int]]:
    """Return each stage's most messages of a rank and most selections in its partial sums."""
    exchanges, merged = [], 1
    while ranks > 1:
        number = min(radix or ranks, ranks)
        exchanges.append((number - 1, merged))
        merged *= 2 * number - 1 if ranks % number else number
        ranks = -(-ranks // number)
    return exchanges


def _exchange_groups(packed: Packed, groups: np.ndarray, own: int, comm: Comm) -> tuple[Array, np.ndarray]:
    # Cut the buffer into messages; the one for the own group stays here.
    messages = cut_messages(packed.buffer, np.asarray(packed.lengths))
    arrived = {comm.rank: messages[own]}
    for there, dest, sources in partners(groups, comm.rank):
        for to, source in zip_longest([dest], sources):
            message = comm.sendrecv(messages[there], to, source)
            if source is not None:
                arrived[source] = checked(message)
    # Put the messages in the rank order of their senders.
    in_order = [arrived[source] for source in sorted(arrived)]
    return namespace(packed.buffer).concatenate(in_order), np.array([len(message) for message in in_order])


def partners(groups: np.ndarray, rank: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the partners of a rank in each step of a stage.

    In step i a rank sends to the i-th group after its own, and receives from the i-th before it, from the rank at its
    own position there; if that group is longer by one, the first rank also receives from its last.

    Yields:
        The group to which the rank sends, the receiver in it, and the zero to two ranks that send to the rank.
    """
    own = int(np.searchsorted(groups, rank, side="right")) - 1
    number, place, width = len(groups) - 1, rank - groups[own], int(groups[own + 1] - groups[own])
    for step in range(1, number):
        there, back = (own + step) % number, (own - step) % number
        dest = int(groups[there] + place % (groups[there + 1] - groups[there]))
        yield there, dest, list(range(int(groups[back] + place), int(groups[back + 1]), width))
