"""Parts with quotas: select the largest of each in one pass over the vector, add messages up, read the result back.

Every part has a threshold, a little below its q-th magnitude in the step before. Entries that reach it are candidates;
the q largest are taken. The result is exact, whatever the thresholds: a part with too many candidates keeps its q
largest and raises its threshold, and one with too few is looked at again.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, bits_type, index_dtype, mantissa_bits
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import LANES, added, prefetch_lanes, reached
from sparse_mpi.kernels.cpu.packing import first_of
from sparse_mpi.kernels.cpu.pairs import CANDIDATES, WINDOW, candidates, keep_of_few, more_candidates
from sparse_mpi.kernels.cpu.passes import (
    TILE,
    append_marked,
    append_rest,
    bits_of,
    readable,
    scratch_for,
    widened,
)
from sparse_mpi.kernels.parts import EqualParts

LEAST, MOST = 1 / 256, 1 / 4  # octaves that thresholds lie below the q-th magnitudes of the step before
AGAIN = 1 / 32  # the share of parts that may be looked at again
SHIFT = LANES.bit_length() - 1  # places over the places of a run
MISPLACED = "its places do not ascend, or are beyond its part"


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> tuple[Array, Array]:
    given = readable(x if add is None else add)
    number, quota = parts.number, parts.quota
    room = 2 * quota + CANDIDATES
    pieces = threads.parts(x.size)
    places = np.empty((len(pieces), number * room), np.int32)
    values = np.empty((len(pieces), number * room), x.dtype)
    counts = np.empty((len(pieces), number), np.int64)
    limits = np.maximum(thresholds[:-1], 1).astype(bits_type(x))

    def work(lo: int, hi: int) -> None:
        at = starts[lo]
        own = places[at], values[at], counts[at]
        _candidates_of_parts(
            x[lo:hi], given[lo:hi], add is not None, scratch_for(given), lo, limits.copy(), quota, *own
        )

    starts = {lo: at for at, (lo, _) in enumerate(pieces)}
    threads.each(work, pieces)
    chosen, largest = np.empty((number, quota), np.int32), np.empty((number, quota), x.dtype)
    margin = _margin(x, thresholds)
    again = _keep_quotas(x, limits, margin, places, values, counts, parts.width, chosen, largest)
    _adapt(thresholds, limits, margin, again, int(counts.sum()) / chosen.size)
    return chosen.astype(parts.place), largest  # loops are compiled for one type of places


def _margin(x: Array, thresholds: Array) -> int:
    octave = 1 << mantissa_bits(x.dtype)
    return int(min(max(thresholds[-1], LEAST * octave), MOST * octave))


def _adapt(thresholds: Array, limits: Array, margin: int, again: int, seen: float) -> None:
    """Set the next step's thresholds, and their margin: larger if many parts were looked at ``again``.

    It is smaller if more than 5/4 candidates were ``seen`` for each entry taken.
    """
    thresholds[:-1] = limits
    thresholds[-1] = 2 * margin if again > AGAIN * len(limits) else 3 * margin // 4 if seen > 5 / 4 else margin


@compiled
def _candidates_of_parts(x, more, join, scratch, first, limits, quota, places, values, counts):
    """Add ``more`` if ``join``, and collect each part's candidates in its share of ``places`` and ``values``.

    ``x`` begins at entry ``first`` of the vector. A tile's candidates are found, then given to their parts.
    """
    number = limits.size
    room = places.size // number
    found, of_found = np.empty(TILE + LANES, np.int32), np.empty(TILE + LANES, x.dtype)
    owner, offset = np.empty(TILE // LANES, np.int64), np.empty(TILE // LANES, np.int64)
    run = first // LANES
    turn, left = run // number, number - run % number  # round, and the runs left in it
    part = (first_of(turn, number) + run) % number
    for i in range(number):
        counts[i] = i * room
    for lo in range(0, x.size, TILE):
        tile, source = x[lo : lo + TILE], more[lo : lo + TILE]
        terms = widened(source, scratch)
        whole = tile.size - tile.size % LANES
        start, count = np.int64(0), np.int64(0)
        for at in range(0, whole, LANES):
            prefetch_lanes(tile, at + TILE)
            owner[at // LANES], offset[at // LANES] = part, (turn - at // LANES) * LANES
            if join:
                prefetch_lanes(source, at + TILE)
                mask = added(tile, at, limits[part], terms)
            else:
                mask = reached(tile, at, limits[part])
            count = append_marked(tile, at, mask, start, count, found, of_found)
            part, turn, left = _following(part, turn, left, number)
        if whole < tile.size:
            owner[whole // LANES], offset[whole // LANES] = part, (turn - whole // LANES) * LANES
            if join:
                for i in range(whole, tile.size):
                    tile[i] += terms[i]
            count = append_rest(tile, whole, limits[part], start, count, found, of_found)
        for i in range(count):
            at = found[i]
            own = owner[at // LANES]
            to = counts[own]
            places[to], values[to] = at + offset[at // LANES], of_found[i]
            counts[own] = to + 1
            if to + 1 == (own + 1) * room:
                row = slice(own * room, to + 1)
                limits[own] = _keep(places[row], values[row], quota)
                counts[own] = own * room + quota
    for i in range(number):
        counts[i] -= i * room


@compiled
def _following(part, turn, left, number):
    """Return the part of the next run, its round, and the runs left in it."""
    if left > 1:
        return (part + 1 if part + 1 < number else 0), turn, left - 1
    return first_of(turn + 1, number), turn + 1, number


@compiled
def _keep(places, values, quota):
    """Move the ``quota`` largest to the front, in order; return the least magnitude bits of a later rival."""
    bits = bits_of(values)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    kth = keep_of_few(places, values, places[:quota], values[:quota])
    return kth + 1 if kth < magnitude else kth


@compiled
def _keep_quotas(x, limits, margin, places, values, counts, width, chosen, largest):
    """Pick each part's largest from all threads' candidates, and set its next threshold."""
    number, quota = chosen.shape
    threads, room = places.shape[0], places.shape[1] // number
    found, of_found = np.empty(threads * room, np.int32), np.empty(threads * room, x.dtype)
    line, again = np.empty(0, x.dtype), 0
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
            count, again = _nonzero_largest(line, quota, found, of_found), again + 1
        limits[part] = _taken(found, of_found, count, margin, chosen[part], largest[part])
    return again


@compiled
def _nonzero_largest(line, quota, found, of_found):
    bits = bits_of(line)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    return candidates(line, magnitude, bits.dtype.type(1), quota, found, of_found)


@compiled
def _gather_part(x, part, number, line):
    line[:] = 0
    for turn in range(line.size // LANES):
        start = (turn * number + (part - first_of(turn, number)) % number) * LANES
        for i in range(start, min(start + LANES, x.size)):
            line[turn * LANES + i - start] = x[i]


@compiled
def _taken(found, of_found, count, margin, chosen, largest):
    """Write the largest of ``count`` candidates, or zeros if too few; return the next threshold."""
    quota, one = chosen.size, bits_of(of_found).dtype.type(1)
    if count >= quota:
        return max(keep_of_few(found[:count], of_found[:count], chosen, largest) - margin, one)
    zeros, place, i = quota - count, 0, 0
    for at in range(quota):
        if i < count and (zeros == 0 or found[i] == place):
            chosen[at], largest[at] = found[i], of_found[i]
            place = found[i] + 1
            i += 1
        else:
            chosen[at], largest[at] = place, 0
            place += 1
            zeros -= 1
    return one


def add_parts(places: Array, values: Array, width: int, thresholds: Array) -> tuple[Array, Array]:
    parts = len(thresholds) - 1
    quota = values.shape[1] // parts
    limits, margin = np.maximum(thresholds[:-1], 1).astype(bits_type(values)), _margin(values, thresholds)
    chosen, largest = np.empty((parts, quota), np.int32), np.empty((parts, quota), values.dtype)
    bad, again, seen = _add_parts(places.astype(np.int32), values, width, limits, margin, chosen, largest)
    if bad >= 0:
        raise MalformedMessage(bad, len(places), MISPLACED)
    _adapt(thresholds, limits, margin, again, seen / chosen.size)
    return chosen.astype(places.dtype), largest


@compiled
def _add_parts(places, values, width, limits, margin, chosen, largest):
    """Return the first rank with a malformed message, or -1; parts summed again; and candidates."""
    number, quota = chosen.shape
    again, seen, room = 0, 0, 2 * quota + CANDIDATES
    found, of_found = np.empty(room, np.int32), np.empty(room, values.dtype)
    one = limits.dtype.type(1)
    for part in range(number):
        own = places[:, part * quota : (part + 1) * quota], values[:, part * quota : (part + 1) * quota]
        count = _candidates_of_sums(*own, width, limits[part], quota, found, of_found)
        seen += count
        if 0 <= count < quota and limits[part] > 1:
            count, again = _candidates_of_sums(*own, width, one, quota, found, of_found), again + 1
        if count < 0:
            return -1 - count, again, seen
        limits[part] = _taken(found, of_found, count, margin, chosen[part], largest[part])
    return -1, again, seen


@compiled
def _candidates_of_sums(places, values, width, limit, quota, found, of_found):
    """Add messages up, in a window that stays in the cache, and gather candidates; return their number.

    Return -1 less the rank of a malformed message.
    """
    ranks, count = len(places), np.int64(0)
    window, cursors = np.empty(WINDOW, values.dtype), np.zeros(ranks, np.int64)
    bits = bits_of(window)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    for start in range(0, width, WINDOW):
        sums = window[: min(WINDOW, width - start)]
        sums[:] = 0
        for rank in range(ranks):
            i = cursors[rank]
            while i < places.shape[1] and places[rank, i] < start + sums.size:
                if places[rank, i] < start:
                    return -1 - rank
                sums[places[rank, i] - start] += values[rank, i]
                i += 1
            cursors[rank] = i
        count, limit = more_candidates(sums, start, count, magnitude, limit, quota, found, of_found)
    for rank in range(ranks):
        if cursors[rank] < places.shape[1]:
            return -1 - rank
    return count


def from_parts(
    parts: EqualParts, places: Array, values: Array, mine: tuple[Array, Array], owed: Array | None, first: int
) -> tuple[Array, Array, Array]:
    size, sent, places = values.size, np.empty_like(values), places.astype(np.int32)
    bad = _read_own(places, mine[0].astype(np.int32), mine[1], parts.width, sent)
    if owed is not None:
        sent[first : first + len(owed)] -= owed
    found = np.empty(size, index_dtype(parts.size)), np.empty(size, values.dtype), np.empty(size, values.dtype)
    count = _ordered(parts.size, parts.rounds, places, values, sent, *found) if bad < 0 else -1 - bad
    if count < 0:
        raise MalformedMessage(-1 - count, parts.number, MISPLACED)
    indices, total, sent = (column[:count] for column in found)
    return indices, total, sent


@compiled
def _read_own(places, own_places, own_values, width, found):
    """Write this rank's values at the result's ``places``; return a part with misplaced places, or -1."""
    line = np.zeros(width, own_values.dtype)
    for part in range(len(places)):
        last = np.int64(-1)
        for i in range(places.shape[1]):
            line[own_places[part, i]] = own_values[part, i]
        for i in range(places.shape[1]):
            place = np.int64(places[part, i])
            if place <= last or place >= width:
                return part
            found[part, i], last = line[place], place
        for i in range(places.shape[1]):
            line[own_places[part, i]] = 0
    return -1


@compiled
def _ordered(size, rounds, places, values, sent, indices, of_indices, sent_of_indices):
    """Write nonzero values by index; return their number, or -1 less a part with places beyond the vector.

    A round begins with the part that leads it: parts from there on come before the others. Both halves of all rounds
    are counted first, which tells where each begins in the result.
    """
    number, quota = places.shape
    leading = np.empty(rounds, np.int64)
    for turn in range(rounds):
        leading[turn] = first_of(turn, number)
    starts = np.zeros(2 * rounds + 1, np.int64)
    for part in range(number):
        for i in range(quota):
            turn = places[part, i] >> SHIFT
            starts[2 * turn + (part < leading[turn]) + 1] += values[part, i] != 0
    for half in range(2 * rounds):
        starts[half + 1] += starts[half]
    for part in range(number):
        for i in range(quota):
            place = np.int64(places[part, i])
            turn = place >> SHIFT
            behind = part < leading[turn]
            if values[part, i] != 0:
                index = (turn * number + part - leading[turn] + behind * number) * LANES + (place & (LANES - 1))
                if index >= size:
                    return -1 - part
                to = starts[2 * turn + behind]
                indices[to], of_indices[to], sent_of_indices[to] = index, values[part, i], sent[part, i]
                starts[2 * turn + behind] = to + 1
    return starts[2 * rounds - 1]
