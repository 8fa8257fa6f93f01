"""Parts with quotas: select the largest of each in one pass over the vector, add messages up, read the result back.

Every part has a threshold, a little below its q-th magnitude in the step before. Entries that reach it are candidates,
of which the q largest are picked out. The result is exact, whatever the thresholds: a part whose candidates are too
many keeps its q largest and raises its threshold, and one with too few is looked at again.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, bits_type, index_dtype, mantissa_bits
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import LANES, added, prefetch_lanes, reached
from sparse_mpi.kernels.cpu.pairs import CANDIDATES, candidates, keep_largest, kth_of
from sparse_mpi.kernels.cpu.passes import TILE, append_marked, append_rest, bits_of, readable, scratch_for, widened
from sparse_mpi.kernels.parts import Parts

MARGIN = 1 / 8  # octaves that a threshold lies below the q-th magnitude of the step before
MISPLACED = "its places do not ascend, or are beyond its part"


def select_parts(x: Array, parts: Parts, thresholds: Array, add: Array | None = None) -> tuple[Array, Array]:
    given = readable(x if add is None else add)
    number, quota = parts.number, parts.quota
    room = 2 * quota + CANDIDATES
    pieces = threads.parts(x.size)
    places = np.empty((len(pieces), number * room), np.int32)
    values = np.empty((len(pieces), number * room), x.dtype)
    counts = np.empty((len(pieces), number), np.int64)
    limits = np.maximum(thresholds, 1).astype(bits_type(x))

    def work(lo: int, hi: int) -> None:
        at = starts[lo]
        own = places[at], values[at], counts[at]
        _candidates_of_parts(x[lo:hi], given[lo:hi], add is not None, scratch_for(given), lo, limits.copy(), quota, *own)

    starts = {lo: at for at, (lo, _) in enumerate(pieces)}
    threads.each(work, pieces)
    chosen, largest = np.empty((number, quota), parts.place), np.empty((number, quota), x.dtype)
    _keep_quotas(x, limits, _margin(x), places, values, counts, parts.width, chosen, largest)
    thresholds[:] = limits
    return chosen, largest


def _margin(x: Array) -> int:
    return int(MARGIN * (1 << mantissa_bits(x.dtype)))


@compiled
def _candidates_of_parts(x, more, join, scratch, first, limits, quota, places, values, counts):
    """Add ``more``, if it is to ``join``, and collect each part's candidates in its share of ``places`` and ``values``.

    ``x`` begins at entry ``first`` of the vector.
    """
    number = limits.size
    room = places.size // number
    full = room - 2 * LANES
    run = first // LANES
    turn, part = run // number, (run // number + run) % number
    left = number - run % number  # runs of this round
    for i in range(number):
        counts[i] = i * room
    for lo in range(0, x.size, TILE):
        tile, source = x[lo : lo + TILE], more[lo : lo + TILE]
        terms = widened(source, scratch)
        whole = tile.size - tile.size % LANES
        for at in range(0, tile.size, LANES):
            offset, count = turn * LANES - at, counts[part]
            if at < whole:
                prefetch_lanes(tile, at + TILE)
                if join:
                    prefetch_lanes(source, at + TILE)
                    mask = added(tile, at, limits[part], terms)
                else:
                    mask = reached(tile, at, limits[part])
                count = append_marked(tile, at, mask, offset, count, places, values)
            else:
                if join:
                    for i in range(whole, tile.size):
                        tile[i] += terms[i]
                count = append_rest(tile, whole, limits[part], offset, count, places, values)
            counts[part] = count
            if count - part * room > full:
                own = slice(part * room, count)
                limits[part] = _keep(places[own], values[own], quota)
                counts[part] = part * room + quota
            part, left = part + 1, left - 1
            if part == number:
                part = 0
            if left == 0:  # the next round begins one part later
                turn, left = turn + 1, number
                part = part + 1 if part + 1 < number else 0
    for i in range(number):
        counts[i] -= i * room


@compiled
def _keep(places, values, quota):
    """Move the ``quota`` largest to the front, in order, and return the least magnitude bits of a later rival."""
    bits = bits_of(values)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    kth, ties = kth_of(values, magnitude, quota)
    keep_largest(places, values, magnitude, kth, ties, places[:quota], values[:quota])
    return kth + 1 if kth < magnitude else kth


@compiled
def _keep_quotas(x, limits, margin, places, values, counts, width, chosen, largest):
    """Pick each part's largest out of the candidates that all threads found, and set its next threshold."""
    number, quota = chosen.shape
    threads, room = places.shape[0], places.shape[1] // number
    found, of_found = np.empty(threads * room, np.int32), np.empty(threads * room, x.dtype)
    line = np.empty(0, x.dtype)
    for part in range(number):
        count = np.int64(0)
        for thread in range(threads):
            for i in range(part * room, part * room + counts[thread, part]):
                found[count] = places[thread, i]
                of_found[count] = values[thread, i]
                count += 1
        if count < quota and limits[part] > 1:
            if line.size == 0:
                line = np.empty(width, x.dtype)
            _gather_part(x, part, number, line)
            count = _nonzero_largest(line, quota, found, of_found)
        limits[part] = _taken(found, of_found, count, margin, chosen[part], largest[part])


@compiled
def _nonzero_largest(line, quota, found, of_found):
    bits = bits_of(line)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    return candidates(line, magnitude, bits.dtype.type(1), quota, found, of_found)


@compiled
def _gather_part(x, part, number, line):
    line[:] = 0
    for turn in range(line.size // LANES):
        start = (turn * number + (part - turn) % number) * LANES
        for i in range(start, min(start + LANES, x.size)):
            line[turn * LANES + i - start] = x[i]


@compiled
def _taken(found, of_found, count, margin, chosen, largest):
    """Write the largest of ``count`` candidates, and zeros at the lowest other places where there are too few.

    Return the next threshold.
    """
    quota = chosen.size
    values = of_found[:count]
    bits = bits_of(of_found)
    one = bits.dtype.type(1)
    if count >= quota:
        magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
        kth, ties = kth_of(values, magnitude, quota)
        keep_largest(found[:count], values, magnitude, kth, ties, chosen, largest)
        return max(kth - margin, one)
    zeros, place, i = quota - count, 0, 0
    for at in range(quota):
        if i < count and (zeros == 0 or found[i] == place):
            chosen[at], largest[at] = found[i], values[i]
            place = found[i] + 1
            i += 1
        else:
            chosen[at], largest[at] = place, 0
            place += 1
            zeros -= 1
    return one


def add_parts(places: Array, values: Array, width: int, thresholds: Array) -> tuple[Array, Array]:
    parts = len(thresholds)
    quota = values.shape[1] // parts
    limits = np.maximum(thresholds, 1).astype(bits_type(values))
    chosen, largest = np.empty((parts, quota), places.dtype), np.empty((parts, quota), values.dtype)
    bad = _add_parts(places, values, width, limits, _margin(values), chosen, largest)
    if bad >= 0:
        raise MalformedMessage(bad, len(places), MISPLACED)
    thresholds[:] = limits
    return chosen, largest


@compiled
def _add_parts(places, values, width, limits, margin, chosen, largest):
    number, quota = chosen.shape
    sums = np.zeros(width, values.dtype)
    room = 2 * quota + CANDIDATES
    found, of_found = np.empty(room, np.int32), np.empty(room, values.dtype)
    bits = bits_of(sums)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    for part in range(number):
        own = slice(part * quota, (part + 1) * quota)
        for rank in range(places.shape[0]):
            at, terms = places[rank, own], values[rank, own]
            for i in range(quota):
                if at[i] >= width:
                    return rank
                sums[at[i]] += terms[i]
        count = candidates(sums, magnitude, limits[part], quota, found, of_found)
        if count < quota and limits[part] > 1:
            count = _nonzero_largest(sums, quota, found, of_found)
        limits[part] = _taken(found, of_found, count, margin, chosen[part], largest[part])
        for rank in range(places.shape[0]):
            for place in places[rank, own]:
                sums[place] = 0
    return -1


def from_parts(
    parts: Parts, places: Array, values: Array, mine: tuple[Array, Array], owed: Array | None, first: int
) -> tuple[Array, Array, Array]:
    indices = np.empty(values.size, index_dtype(parts.size))
    total, sent = np.empty(values.size, values.dtype), np.empty(values.size, values.dtype)
    error = np.empty((0, parts.quota), values.dtype) if owed is None else owed
    count = _from_parts(parts.size, places, values, *mine, error, first, indices, total, sent)
    if count < 0:
        raise MalformedMessage(-1 - count, parts.number, MISPLACED)
    return indices[:count], total[:count], sent[:count]


@compiled
def _from_parts(size, places, values, own_places, own_values, owed, first, indices, total, sent):
    """Read all parts side by side, run by run, so that indices ascend."""
    number, quota = places.shape
    next_of, next_own = np.zeros(number, np.int32), np.zeros(number, np.int32)
    zero, count, start, turn, part, left = values.dtype.type(0), 0, 0, 0, 0, number
    while start < size:
        place = next_of[part]
        end = (turn + 1) * LANES
        while place < quota and places[part, place] < end:
            at, value = np.int64(places[part, place]), values[part, place]
            index = start + at - turn * LANES
            if index < start:
                return -1 - part
            own = next_own[part]
            while own < quota and own_places[part, own] < at:
                own += 1
            next_own[part] = own
            mine = own_values[part, own] if own < quota and own_places[part, own] == at else zero
            if first <= part < first + owed.shape[0]:
                mine -= owed[part - first, place]
            if value != 0:
                indices[count], total[count], sent[count] = index, value, mine
                count += 1
            place += 1
        next_of[part] = place
        start += LANES
        part, left = part + 1, left - 1
        if part == number:
            part = 0
        if left == 0:
            turn, left = turn + 1, number
            part = part + 1 if part + 1 < number else 0
    return count
