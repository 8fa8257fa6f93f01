"""Parts with quotas: select the largest of each in one pass over the vector, add messages up, read the result back.

Every part has a threshold, a little below its q-th magnitude in the step before. Entries that reach it are candidates;
the q largest are taken. The result is exact, whatever the thresholds: a part with too many candidates keeps its q
largest and raises its threshold, and one with too few is looked at again.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, bits_type, index_dtype
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import MalformedMessage
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import LANES, added, ones, prefetch, prefetch_lanes, reached
from sparse_mpi.kernels.cpu.packing import first_of, read_only
from sparse_mpi.kernels.cpu.pairs import CANDIDATES, candidates, keep_of_few
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

LEAST, MOST = 8, 2  # thresholds lie 2^-8 to 2^-2 octaves below the q-th magnitudes of the step before
AGAIN = 1 / 32  # the share of parts that may be looked at again
SHIFT = LANES.bit_length() - 1  # places over the places of a run
AHEAD = 16  # entries, a cache line or two, between the one that is written and the one whose line is fetched
NARROW, WIDE = np.empty(0, np.uint16), np.empty(0, np.uint32)  # types of places
MISPLACED = "its places do not ascend, or are beyond its part"


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> Array:
    given, join = readable(x if add is None else add), add is not None
    messages, pieces = np.zeros((parts.ranks, parts.length(x.dtype)), np.uint8), threads.parts(x.size)
    into = thresholds, parts.width, parts.quota, _short(parts), messages
    if len(pieces) == 1:  # all in one call, for short vectors
        _select_parts(x, given, join, scratch_for(given), *into)
        return messages
    room = len(pieces), parts.number * (2 * parts.quota + CANDIDATES)
    found = np.empty(room, np.int32), np.empty(room, x.dtype), np.empty((len(pieces), parts.number), np.int64)
    limits = np.maximum(thresholds[:-1], 1).astype(bits_type(x))
    starts = {lo: at for at, (lo, _) in enumerate(pieces)}

    def work(lo: int, hi: int) -> None:
        own = [each[starts[lo]] for each in found]
        _candidates_of_parts(x[lo:hi], given[lo:hi], join, scratch_for(given), lo, limits.copy(), parts.quota, *own)

    threads.each(work, pieces)
    _keep_quotas(x, limits, *found, *into)
    return messages


def _short(parts: EqualParts) -> bool:
    return parts.place.itemsize == 2


@compiled
def _select_parts(x, more, join, scratch, thresholds, width, quota, short, messages):
    number = thresholds.size - 1
    room = number * (2 * quota + CANDIDATES)
    places, values = np.empty((1, room), np.int32), np.empty((1, room), x.dtype)
    limits, counts = np.empty(number, bits_of(x).dtype), np.empty((1, number), np.int64)
    for part in range(number):
        limits[part] = max(thresholds[part], 1)
    _candidates_of_parts(x, more, join, scratch, 0, limits.copy(), quota, places[0], values[0], counts[0])
    _keep_quotas(x, limits, places, values, counts, thresholds, width, quota, short, messages)


@compiled
def _candidates_of_parts(x, more, join, scratch, first, limits, quota, places, values, counts):
    """Add ``more`` if ``join``, and collect each part's candidates in its share of ``places`` and ``values``.

    ``x`` begins at entry ``first`` of the vector.
    """
    number = limits.size
    room = places.size // number
    run = first // LANES
    turn, left = run // number, number - run % number  # round, and the runs left in it
    part = (first_of(turn, number) + run) % number
    for i in range(number):
        counts[i] = i * room
    for lo in range(0, x.size, TILE):
        tile, source = x[lo : lo + TILE], more[lo : lo + TILE]
        terms = widened(source, scratch)
        for at in range(0, tile.size, LANES):
            offset, count = turn * LANES - at, counts[part]
            if at + LANES <= tile.size:
                prefetch_lanes(tile, at + TILE)
                if join:
                    prefetch_lanes(source, at + TILE)
                    mask = added(tile, at, limits[part], terms)
                else:
                    mask = reached(tile, at, limits[part])
                count = append_marked(tile, at, mask, offset, count, places, values)
            else:
                if join:
                    for i in range(at, tile.size):
                        tile[i] += terms[i]
                count = append_rest(tile, at, limits[part], offset, count, places, values)
            if count > (part + 1) * room - LANES:
                row = slice(part * room, count)
                limits[part] = _keep(places[row], values[row], quota, limits[part])
                count = part * room + quota
            prefetch(places, count + AHEAD)
            prefetch(values, count + AHEAD)
            counts[part] = count
            part, turn, left = _following(part, turn, left, number)
    for i in range(number):
        counts[i] -= i * room


@compiled
def _following(part, turn, left, number):
    """Return the part of the next run, its round, and the runs left in it."""
    if left > 1:
        return (part + 1 if part + 1 < number else 0), turn, left - 1
    return first_of(turn + 1, number), turn + 1, number


@compiled
def _keep(places, values, quota, limit):
    """Move the ``quota`` largest to the front, in order; return the least magnitude bits of a later rival."""
    bits = bits_of(values)
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    kth = keep_of_few(places, values, places[:quota], values[:quota], limit)
    return kth + 1 if kth < magnitude else kth


@compiled
def _keep_quotas(x, limits, places, values, counts, thresholds, width, quota, short, messages):
    """Pick each part's largest from all threads' candidates, and set the next step's thresholds and their margin."""
    number, each = limits.size, limits.size // len(messages)
    threads, room = places.shape[0], places.shape[1] // number
    found, of_found = np.empty(threads * room, np.int32), np.empty(threads * room, x.dtype)
    line, chosen, again, seen = np.empty(0, x.dtype), np.empty(quota, np.int32), 0, np.int64(0)
    octave = np.int64(1) << (23 if x.itemsize == 4 else 52)
    margin = min(max(thresholds[number], octave >> LEAST), octave >> MOST)
    for part in range(number):
        count, first = counts[0, part], part * room
        own, of_own = places[0, first : first + room], values[0, first : first + room]
        if threads > 1:
            own, of_own, count = found, of_found, np.int64(0)
            for thread in range(threads):
                for i in range(first, first + counts[thread, part]):
                    found[count], of_found[count] = places[thread, i], values[thread, i]
                    count += 1
        seen += count
        if count < quota and limits[part] > 1:
            if line.size == 0:
                line = np.empty(width, x.dtype)
            _gather_part(x, part, number, line)
            count, again = candidates(line, bits_of(line).dtype.type(1), quota, own, of_own), again + 1
        row, at = messages[part // each], part % each
        largest = _of_part(row, each, at, x, quota)
        kth = _taken(own, of_own, count, limits[part] + margin, chosen, largest)
        _write_places(row, each, at, x.itemsize, chosen, short)
        thresholds[part] = max(kth - margin, 1)
    # Larger if many parts were looked at again, smaller if more than 5/4 candidates were seen for each entry taken
    wider, narrower = again > AGAIN * number, 4 * seen > 5 * number * quota
    thresholds[number] = 2 * margin if wider else 3 * margin // 4 if narrower else margin


@compiled
def _of_part(section, parts, part, like, quota):
    """Return a view of a part's numbers, of the type of ``like``, in a section of a message of so many ``parts``."""
    return section[: like.itemsize * parts * quota].view(like.dtype)[part * quota : (part + 1) * quota]


@compiled
def _write_places(message, parts, part, itemsize, chosen, short):
    section = message[itemsize * parts * chosen.size :]
    if short:
        narrow = _of_part(section, parts, part, NARROW, chosen.size)
        for i in range(chosen.size):
            narrow[i] = chosen[i]
    else:
        wide = _of_part(section, parts, part, WIDE, chosen.size)
        for i in range(chosen.size):
            wide[i] = chosen[i]


@compiled
def _read_places(message, parts, part, itemsize, chosen, short, width):
    """Write a part's places to ``chosen``; return True if they ascend from 0 to below ``width``."""
    section, ascend = message[itemsize * parts * chosen.size :], True
    if short:
        narrow = _of_part(section, parts, part, NARROW, chosen.size)
        for i in range(chosen.size):
            chosen[i] = narrow[i]
    else:
        wide = _of_part(section, parts, part, WIDE, chosen.size)
        for i in range(chosen.size):
            chosen[i] = np.int32(wide[i])
    for i in range(1, chosen.size):
        ascend &= chosen[i - 1] < chosen[i]
    return ascend and chosen[0] >= 0 and chosen[chosen.size - 1] < width


@compiled
def _gather_part(x, part, number, line):
    line[:] = 0
    for turn in range(line.size // LANES):
        start = (turn * number + (part - first_of(turn, number)) % number) * LANES
        for i in range(start, min(start + LANES, x.size)):
            line[turn * LANES + i - start] = x[i]


@compiled
def _taken(found, of_found, count, guess, chosen, largest):
    """Write the largest of ``count`` candidates, or zeros if too few; return the least one's magnitude bits."""
    quota = chosen.size
    if count >= quota:
        return np.int64(keep_of_few(found[:count], of_found[:count], chosen, largest, guess))
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
    return np.int64(0)


def add_parts(messages: Array, parts: EqualParts, thresholds: Array, real: np.dtype) -> Array:
    message, words = np.zeros((1, parts.length(real)), np.uint8), parts.width >> SHIFT
    given = read_only(messages), parts.each, parts.quota, words, _short(parts), np.empty(0, real)
    bad = _add_parts(*given, thresholds, message)
    if bad >= 0:
        raise MalformedMessage(bad, len(messages), MISPLACED)
    return message[0]


@compiled
def _add_parts(messages, parts, quota, words, short, like, thresholds, message):
    """Return the first rank with a malformed message, or -1.

    Each place has a bit in ``words``: those of all ranks are flagged, and counted up to each word. So sums are made
    where they stay, in few cache lines.
    """
    ranks, one = len(messages), np.uint64(1)
    places, found = np.empty((ranks, quota), np.int32), np.empty(ranks * quota, np.int32)
    sums, flags, before = np.empty(found.size, like.dtype), np.empty(words, np.uint64), np.empty(words, np.int64)
    for part in range(parts):
        flags[:] = 0
        for rank in range(ranks):
            own = places[rank]
            if not _read_places(messages[rank], parts, part, like.itemsize, own, short, words << SHIFT):
                return rank
            for i in range(quota):
                flags[own[i] >> SHIFT] |= one << np.uint64(own[i] & (LANES - 1))
        count = np.int64(0)
        for word in range(words):
            before[word] = count
            count += ones(flags[word])
        sums[:count] = 0
        for rank in range(ranks):
            own, values = places[rank], _of_part(messages[rank], parts, part, like, quota)
            for i in range(quota):
                word, bit = np.uint64(own[i] >> SHIFT), one << np.uint64(own[i] & (LANES - 1))
                at = np.uint64(before[word] + ones(flags[word] & (bit - one)))
                found[at] = own[i]
                sums[at] += values[i]
        nonzero = np.int64(0)
        for i in range(count):
            nonzero += sums[i] != 0
        if nonzero < quota:  # zeros come from places that no rank has sent, too
            nonzero = np.int64(0)
            for i in range(count):
                found[nonzero], sums[nonzero] = found[i], sums[i]
                nonzero += sums[i] != 0
            count = nonzero
        chosen, largest = places[0], _of_part(message[0], parts, part, like, quota)
        thresholds[part] = _taken(found, sums, count, thresholds[part], chosen, largest)
        _write_places(message[0], parts, part, like.itemsize, chosen, short)
    return -1


def from_parts(
    messages: Array, parts: EqualParts, own: Array, owed: Array | None, rank: int, real: np.dtype
) -> tuple[Array, Array, Array]:
    size = parts.number * parts.quota
    found = np.empty(size, index_dtype(parts.size)), np.empty(size, real), np.empty(size, real)
    owes = np.empty(0, real) if owed is None else owed
    given = read_only(messages), read_only(own), owes, rank * parts.entries
    count = _from_parts(*given, parts.size, parts.number, parts.quota, parts.rounds, _short(parts), *found)
    if count < 0:
        raise MalformedMessage((-1 - count) // parts.each, len(messages), MISPLACED)
    indices, total, sent = (column[:count] for column in found)
    return indices, total, sent


@compiled
def _from_parts(messages, own, owed, first, size, number, quota, rounds, short, indices, total, sent):
    """Write nonzero values by index, and this rank's at the same places; return their number, or -1 less a bad part.

    A round begins with the part that leads it: parts from there on come before the others. Both halves of all rounds
    are counted first, which tells where each begins in the result. A place's last entry among this rank's has a number
    below ``start`` if it is of an earlier part. Unsigned numbers save checks of each place.
    """
    each, one, two, ahead = number // len(messages), np.uint64(1), np.uint64(2), np.uint64(AHEAD)
    width = rounds * LANES
    of_part, chosen, last = np.empty(quota, np.int32), np.empty(quota, np.int32), np.full(width, -1, indices.dtype)
    leading, starts = np.empty(rounds, np.int64), np.zeros(2 * rounds + 1, np.int64)
    for turn in range(rounds):
        leading[turn] = first_of(turn, number)
    for part in range(number):
        message = messages[part // each]
        if not _read_places(message, each, part % each, sent.itemsize, of_part, short, width):
            return -1 - part
        values = _of_part(message, each, part % each, sent, quota)
        for i in range(quota):
            turn = np.uint64(of_part[i]) >> np.uint64(SHIFT)
            starts[two * turn + np.uint64(part < leading[turn]) + one] += values[i] != 0
    for half in range(2 * rounds):
        starts[half + 1] += starts[half]
    for part in range(number):
        message, mine = messages[part // each], own[part // each]
        at = part % each
        values, terms = _of_part(message, each, at, sent, quota), _of_part(mine, each, at, sent, quota)
        _read_places(mine, each, at, sent.itemsize, chosen, short, width)
        _read_places(message, each, at, sent.itemsize, of_part, short, width)
        start = part * quota
        for i in range(quota):
            last[chosen[i]] = start + i
        lacking = start - first  # where ``owed`` has this part
        owes = 0 <= lacking < owed.size
        for i in range(quota):
            place = np.uint64(of_part[i])
            turn = place >> np.uint64(SHIFT)
            behind = part < leading[turn]
            run = turn * np.uint64(number) + np.uint64(part - leading[turn] + behind * number)
            index = run * np.uint64(LANES) + (place & np.uint64(LANES - 1))
            to = np.uint64(starts[two * turn + np.uint64(behind)])
            own_number = last[place] - start
            term = terms[max(own_number, 0)]
            if values[i] != 0:
                if index >= size:
                    return -1 - part
                indices[to], total[to] = index, values[i]
                term = term if own_number >= 0 else terms.dtype.type(0)
                sent[to] = term - owed[lacking + i] if owes else term
                starts[two * turn + np.uint64(behind)] = to + one
                prefetch(indices, to + ahead)
                prefetch(total, to + ahead)
                prefetch(sent, to + ahead)
    return starts[2 * rounds - 1]
