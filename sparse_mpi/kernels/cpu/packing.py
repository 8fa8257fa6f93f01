"""Packed messages, written and read entry by entry, where possible by words of eight bytes.

Later words overwrite surplus bits of earlier ones. Single bytes are used where a word would reach beyond a section.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from sparse_mpi.arrays import FIBONACCI, Array, index_dtype
from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import MISCOUNTED, MalformedMessage, totals
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import copy_bytes, load_word, lowest, ones, store_word
from sparse_mpi.kernels.cpu.pairs import add, fetch_ahead, keep_of_few

ZERO, ONE, BYTE = np.uint64(0), np.uint64(1), np.uint64(255)
FOUR = 14  # low bits of an index up to which a word has room for those of four, beside 7 that begin in its first byte
lay_out = partial(array.lay_out, write=compiled(array.sections))


@compiled
def _count_bytes(width):
    return 1 if width <= 1 << 8 else 2 if width <= 1 << 16 else 4 if width <= 1 << 32 else 8


@compiled
def sizes(entries, regions, counted, together, code, block):
    found = np.zeros((3, entries.size), np.int64)
    for m in range(entries.size):
        if counted:
            found[0, m] = _count_bytes(regions[m, 1] - regions[m, 0])
        found[1, m] = -(-entries[m] // together) * code
        if block:
            found[2, m] = -(-entries[m] // block)
    return found


@compiled
def edges(messages, block):
    blocks = 0
    for m in range(messages.size):
        blocks += -(-messages[m].entries // block)
    found, at = np.empty(blocks + 1, np.int64), 0
    found[blocks] = 0
    for m in range(messages.size):
        first, entries = messages[m].first, messages[m].entries
        for start in range(0, entries, block):
            found[at] = first + start
            at += 1
        found[blocks] += entries
    return found


def numbers(buffer: Array, lengths: np.ndarray, regions: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, int]:
    entries = np.zeros(len(lengths), np.int64)
    return entries, _numbers(read_only(buffer), lengths, regions, starts, entries)


@compiled
def _numbers(buffer, lengths, regions, starts, entries):
    for m in range(lengths.size):
        width = regions[m, 1] - regions[m, 0]
        if lengths[m] == 0:
            continue
        digits = _count_bytes(width)
        if lengths[m] < digits:
            return m
        number = np.int64(0)
        for i in range(digits):
            number |= np.int64(buffer[starts[m] + i]) << (8 * i)
        entries[m] = number + 1
        if entries[m] < 0 or entries[m] > width:
            return m
    return -1


@compiled
def _bytes(bits):
    return (bits + 7) >> 3


def read_only(buffer: Array) -> np.ndarray:
    """Return a read-only view of a received buffer, so that its readers are compiled once."""
    source = np.ascontiguousarray(buffer).view()
    source.flags.writeable = False
    return source


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    buffer = np.empty(int(messages.view(np.int64)[-1]), np.uint8)
    _write(messages, np.ascontiguousarray(indices), codes.view(np.uint8), scales.view(np.uint8), buffer)
    return buffer


@compiled
def _write(messages, indices, codes, scales, buffer):
    code = scale = 0
    for m in range(messages.size):
        one = messages[m]
        if one.entries == 0:
            continue
        # The number of entries, less one.
        number = one.entries - 1
        for at in range(one.head, one.values):
            buffer[at] = number & 255
            number >>= 8
        # The codes of the values, and their scales.
        values = one.scales - one.values
        copy_bytes(buffer[one.values :], codes[code : code + values])
        code += values
        for at in range(one.scales, one.lows, one.scale_bytes):
            for i in range(one.scale_bytes):
                buffer[at + i] = scales[scale + 4 - one.scale_bytes + i]
            scale += 4
        # The indices.
        part, start, shift = indices[one.first : one.first + one.entries], one.start, one.shift
        if shift:
            _write_lows(buffer[one.lows : one.highs], part, start, shift)
        if one.span:
            _write_highs(buffer[one.highs : one.end], part, start, shift, one.spread)


@compiled
def _write_lows(lows, part, start, shift):
    mask, fast = (ONE << np.uint64(shift)) - ONE, _whole_words(lows, part, shift)
    fours = fast & ~3 if shift <= FOUR else 0
    held, bits, at = ZERO, 0, 0
    # ``held`` has the ``bits`` bits, fewer than 8, that do not fill the byte at ``at`` yet. Whole words first.
    for i in range(0, fours, 4):
        word = ZERO
        for j in range(4):
            word |= (np.uint64(part[i + j] - start) & mask) << np.uint64(j * shift)
        held |= word << np.uint64(bits)
        bits += 4 * shift
        store_word(lows, at, held)
        held >>= np.uint64(bits & ~7)
        at += bits >> 3
        bits &= 7
    for i in range(fours, fast):
        held |= (np.uint64(part[i] - start) & mask) << np.uint64(bits)
        bits += shift
        store_word(lows, at, held)
        held >>= np.uint64(bits & ~7)
        at += bits >> 3
        bits &= 7
    # The last entries byte by byte.
    for i in range(fast, part.size):
        held |= (np.uint64(part[i] - start) & mask) << np.uint64(bits)
        bits += shift
        while bits > 0:
            lows[at] = held & BYTE
            if bits < 8:
                break
            held >>= np.uint64(8)
            bits -= 8
            at += 1


@compiled
def _whole_words(lows, part, shift):
    return min(part.size, max(0, (8 * (lows.size - 7) + shift - 1) // shift))


@compiled
def _write_highs(highs, part, start, shift, spread):
    """Set a bit for each index, at its high part, plus the number of entries before it if ``spread`` is 1."""
    highs[:] = 0
    # The word that an entry lies in is stored again for each, without being read: its earlier bits are still held.
    word, at, whole = ZERO, 0, highs.size >> 3
    for i in range(part.size):
        place = ((part[i] - start) >> shift) + spread * i
        word = (word if place >> 6 == at else ZERO) | ONE << np.uint64(place & 63)
        at = place >> 6
        if at < whole:
            store_word(highs, 8 * at, word)
        else:
            highs[place >> 3] |= 1 << (place & 7)


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    entries, of_codes, of_scales = totals(messages)
    indices, codes = np.empty(entries, index_dtype(size)), np.empty(of_codes, np.uint8)
    scales = np.zeros(of_scales, np.float32)
    bad = _read(messages, read_only(buffer), indices, codes, scales.view(np.uint8))
    if bad >= 0:
        raise MalformedMessage(bad, len(messages), MISCOUNTED)
    return indices, codes, scales


@compiled
def _read(messages, buffer, indices, codes, scales):
    """Invert `_write`: high parts are written to ``indices`` first, and low bits added to them.

    Return the first message with different numbers of indices and entries, or -1.
    """
    code = scale = 0
    for m in range(messages.size):
        one = messages[m]
        copy_bytes(codes[code:], buffer[one.values : one.scales])
        code += one.scales - one.values
        for at in range(one.scales, one.lows, one.scale_bytes):
            for i in range(one.scale_bytes):
                scales[scale + 4 - one.scale_bytes + i] = buffer[at + i]
            scale += 4
        part, start, shift = indices[one.first : one.first + one.entries], one.start, one.shift
        if one.span:
            if not _read_highs(buffer[one.highs : one.highs + _bytes(one.span)], part, start, shift, one.spread):
                return m
        else:
            for i in range(part.size):
                part[i] = start + i
        if shift:
            _read_lows(buffer[one.lows :], part, shift)
    return -1


@compiled
def misplaced(indices, counts, regions, beyond):
    low, high, first = regions[0, 0], regions[0, 1], 0
    for m in range(1, counts.size):
        low, high = min(low, regions[m, 0]), max(high, regions[m, 1])
    high -= beyond
    for m in range(counts.size):
        part = indices[first : first + counts[m]]
        first += counts[m]
        if part.size and (part[0] < low or part[-1] > high):
            return m
        fall = False
        for i in range(1, part.size):
            fall |= part[i] <= part[i - 1]
        if fall:
            return m
    return -1


@compiled
def _last_word(buffer, at):
    word = ZERO
    for i in range(at, min(at + 8, buffer.size)):
        word |= np.uint64(buffer[i]) << np.uint64(8 * (i - at))
    return word


@compiled
def _read_highs(highs, part, start, shift, spread):
    """Turn the position of each set bit into an index with zero low bits, eight bytes at a time.

    Return whether there are as many bits as indices.
    """
    i = 0
    for at in range(0, highs.size, 8):
        mask = load_word(highs, at) if at + 8 <= highs.size else _last_word(highs, at)
        found = part[i : i + ones(mask)]
        if found.size < ones(mask):
            return False
        for j in range(found.size):
            place = 8 * at + lowest(mask) - spread * (i + j)
            found[j] = start + (place << shift)
            mask &= mask - ONE
        i += found.size
    return i == part.size


@compiled
def _read_lows(lows, part, shift):
    mask, fast = (ONE << np.uint64(shift)) - ONE, _whole_words(lows, part, shift)
    fours = fast & ~3 if shift <= FOUR else 0
    for i in range(0, fours, 4):
        bit = i * shift
        word = load_word(lows, bit >> 3) >> np.uint64(bit & 7)
        for j in range(4):
            part[i + j] += np.int64((word >> np.uint64(j * shift)) & mask)
    for i in range(fours, fast):
        bit = i * shift
        part[i] += np.int64((load_word(lows, bit >> 3) >> np.uint64(bit & 7)) & mask)
    for i in range(fast, part.size):
        bit = i * shift
        part[i] += np.int64((_last_word(lows, bit >> 3) >> np.uint64(bit & 7)) & mask)


def cast_votes(
    x: Array, indices: Array, values: Array, quotas: np.ndarray, own: int = 0, more: int = 0
) -> tuple[Array, Array]:
    ranks, most = len(quotas), sum(quotas.tolist()) + more
    width, counts = -(-len(x) // ranks), np.empty(ranks, np.int64)
    numbers, deltas = np.empty(most, index_dtype(width * ranks)), np.empty(most, values.dtype)
    count = _cast_votes(x, indices, values, quotas, own, more, width, numbers, deltas, counts)
    return array.completed(numbers[:count], deltas[:count], counts, quotas, width)


@compiled
def first_of(round_number, ranks):
    fraction = np.uint32(np.uint32(round_number) * FIBONACCI) >> np.uint32(16)
    return np.int64(np.uint32(fraction * np.uint32(ranks)) >> np.uint32(16))


@compiled
def _cast_votes(x, indices, values, quotas, own, more, width, numbers, deltas, counts):
    """Count each rank's candidates, put them in their places, and keep the most worthwhile; return their number."""
    ranks, many, share = quotas.size, indices.size, 1 / quotas.size
    owners, found, starts = np.empty(many, np.uint16), np.empty(many, numbers.dtype), np.zeros(ranks + 1, np.int64)
    for i in range(many):  # owners of all together, by vector instructions
        index = np.int64(indices[i])
        turn = np.int64(index * share)  # or one beside it
        turn += (turn + 1) * ranks <= index
        turn -= turn * ranks > index
        owner = index - turn * ranks + first_of(turn, ranks)
        owner = owner - ranks if owner >= ranks else owner
        owners[i], found[i] = owner, owner * width + turn
    for i in range(many):
        starts[owners[i] + 1] += 1
    for owner in range(ranks):
        starts[owner + 1] += starts[owner]
    dealt, changes, worth = np.empty_like(found), np.empty_like(values), np.empty_like(values)
    for i in range(many):
        fetch_ahead(x, indices, i)
        owner = np.int64(owners[i])
        at = starts[owner]
        starts[owner] += 1
        dealt[at], worth[at] = found[i], values[i]
        changes[at] = values[i] - x[indices[i]]
    for i in range(many):  # roots of all together, by vector instructions
        worth[i] = np.sqrt(np.abs(changes[i])) * np.sqrt(np.abs(worth[i]))
    places, chosen, largest = np.arange(many), np.empty(numbers.size, np.int64), np.empty_like(deltas)
    count, guess = np.int64(0), np.int64(0)
    for place in range(ranks + (more > 0)):
        owner = place if place < ranks else own
        begin, end, most = starts[owner - 1] if owner else 0, starts[owner], quotas[owner] if place < ranks else more
        kept = chosen[count : count + (most if place == own and more else min(most, end - begin))]
        if place == own and more:  # no votes: they come behind those for all others
            for i in range(most):
                kept[i] = -1 - i
        elif most < end - begin and most > 0:
            guess = keep_of_few(places[begin:end], worth[begin:end], kept, largest[: kept.size], guess)
        elif most > 0:
            kept[:] = places[begin:end]
        if place < ranks:
            counts[place] = kept.size
        count += kept.size
    for i in range(count):
        place = chosen[i]
        numbers[i] = dealt[place] if place >= 0 else own * width - 1 - place
        deltas[i] = changes[place] if place >= 0 else 0
    return count


def undeal(numbers: Array, size: int, ranks: int) -> Array:
    indices = np.empty(len(numbers), index_dtype(size))
    _undeal(numbers, ranks, -(-size // ranks), indices)
    return indices


def add_dealt(x: Array, numbers: Array, values: Array, size: int, ranks: int) -> None:
    add(x, undeal(numbers, size, ranks), values)


@compiled
def _undeal(numbers, ranks, width, indices):
    """Find the indices of ascending numbers, one stretch for each owner, without a division."""
    begin = 0
    for owner in range(ranks):
        first = owner * width
        end = np.searchsorted(numbers, first + width)
        part, found = numbers[begin:end], indices[begin:end]
        for i in range(part.size):
            round_number = np.int64(part[i]) - first
            place = owner - first_of(round_number, ranks)
            place += ranks if place < 0 else 0
            found[i] = round_number * ranks + place
        begin = end
