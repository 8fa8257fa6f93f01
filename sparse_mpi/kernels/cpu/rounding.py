"""Round values to fewer bits, and subtract sent from all values."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import BALLOTS, SCALED, code_places
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import real_of
from sparse_mpi.kernels.cpu.passes import bits_of, mixed
from sparse_mpi.kernels.levels import (
    DRAWS,
    EXPONENTS,
    HASH,
    INF_BITS,
    LARGEST,
    LARGEST_SHORT,
    LEVEL,
    NO_VOTE,
    NOT_FINITE,
    SHARE,
    SHIFT,
    TOP,
    lowest,
)

PIECE = 1024  # values that are rounded at a time
SIGN, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)  # all bits but the sign, and the magnitude of Inf


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    x, rounded = np.ascontiguousarray(x), np.empty(len(x), np.uint16)
    wide = x[:0] if back is None else back
    threads.each(lambda lo, hi: _to_bfloat16(x[lo:hi], rounded[lo:hi], wide[lo:hi]), threads.parts(len(x)))
    return rounded


@compiled
def _to_bfloat16(x, rounded, back):
    scratch = np.empty(PIECE, np.float32)
    for lo in range(0, x.size, PIECE):
        part, codes = x[lo : lo + PIECE], rounded[lo : lo + PIECE]
        for i in range(part.size):
            scratch[i] = part[i]
        bits = scratch[: part.size].view(np.uint32)
        _round_bits(bits, codes)
        wide = back[lo : lo + PIECE]
        if wide.size:
            for i in range(part.size):
                bits[i] = np.uint32(codes[i]) << np.uint32(16)
            for i in range(part.size):
                wide[i] = scratch[i]


@compiled
def _rounded_up(bits):
    return np.uint32(bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))


@compiled
def _round_bits(bits, rounded):
    """Round float32 bit patterns to their upper half, ties to even; NaN becomes 0x7FC0."""
    for i in range(bits.size):
        wide = bits[i]
        up = _rounded_up(wide) >> np.uint32(16)
        nan = (wide & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        rounded[i] = np.uint16(0x7FC0) if nan else np.uint16(up)


def subtract_dense(x: Array, values: Array) -> None:
    threads.each(lambda lo, hi: _subtract_dense(x[lo:hi], values[lo:hi]), threads.parts(len(x)))


@compiled
def _subtract_dense(x, values):
    for i in range(x.size):
        value = values[i]
        x[i] = x[i] - value if value - value == 0 else 0  # only finite numbers minus themselves are 0


def follow_squares(mean: Array, x: Array, weight: float) -> None:
    share = mean.dtype.type(weight)
    threads.each(lambda lo, hi: _follow_squares(mean[lo:hi], x[lo:hi], share), threads.parts(len(mean)))


@compiled
def _follow_squares(mean, x, weight):
    """Move each mean towards a square; only a finite number minus itself is 0."""
    for i in range(mean.size):
        change = (x[i] * x[i] - mean[i]) * weight
        mean[i] = mean[i] + change if (x[i] - x[i]) + (mean[i] - mean[i]) == 0 else mean[i]


def to_float16(x: Array) -> Array:
    rounded = np.empty(len(x), np.uint16)
    _round_to_float16(np.ascontiguousarray(x).view(np.uint32), rounded)
    return rounded.view(np.float16)


@compiled
def _round_to_float16(bits, rounded):
    """Round float32 bit patterns to float16, ties to even.

    Below 2^-14 results are denormal: adding 0.5 in float32 rounds, because the sum's last bit is worth as much as a
    denormal float16's. Above, adding to the surplus bits rounds them.
    """
    half = np.uint32(126 << 23)
    scratch = np.empty(1, np.float32)
    for i in range(bits.size):
        magnitude, sign = bits[i] & np.uint32(0x7FFFFFFF), (bits[i] >> np.uint32(16)) & np.uint32(0x8000)
        capped = min(magnitude, np.uint32(0x477FE000))
        scratch.view(np.uint32)[0] = capped
        scratch[0] += np.float32(0.5)
        tiny = scratch.view(np.uint32)[0] - half
        odd = (capped >> np.uint32(13)) & np.uint32(1)
        normal = (capped + np.uint32(0xFFF) + odd - np.uint32(112 << 23)) >> np.uint32(13)
        code = sign | (tiny if capped < np.uint32(113 << 23) else normal)
        code = sign | np.uint32(0x7C00) if magnitude == np.uint32(0x7F800000) else code
        rounded[i] = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else code


@compiled
def to_int8(x, indices, edges, short=False):
    codes, scales, bits = np.empty(x.size, np.int8), np.empty(edges.size - 1, np.float32), x.view(np.uint32)
    for block in range(scales.size):
        lo, hi = edges[block], edges[block + 1]
        part, largest = bits[lo:hi], np.uint32(0)
        for i in range(part.size):
            magnitude = part[i] & np.uint32(0x7FFFFFFF)
            largest = max(largest, magnitude if magnitude < np.uint32(0x7F800000) else np.uint32(0))
        scales[block : block + 1].view(np.uint32)[0] = largest
        scales[block] = min(scales[block], LARGEST) / np.float32(127)
        _step(x[lo:hi], part, indices[lo:hi], scales[block], codes[lo:hi])
        if short:
            scale = scales[block : block + 1].view(np.uint32)
            scale[0] = min(_rounded_up(scale[0]) & np.uint32(0xFFFF0000), LARGEST_SHORT)
    return codes, scales


@compiled
def _step(x, bits, indices, scale, codes):
    """Round the values of a block stochastically to whole steps of ``scale``; NaN and Inf become -128."""
    divisor = scale if scale > 0 else np.float32(1)
    for i in range(x.size):
        finite = (bits[i] & np.uint32(0x7FFFFFFF)) < np.uint32(0x7F800000)
        step = (x[i] if finite else np.float32(0)) / divisor
        lower = np.floor(step)
        chance = np.float32(mixed(mixed(np.uint32(indices[i])) ^ bits[i]) >> np.uint32(8))
        lower += np.float32((step - lower) * np.float32(1 << 24) > chance)
        codes[i] = np.int8(min(max(lower, np.float32(-127)), np.float32(127))) if finite else np.int8(-128)


@compiled
def from_int8(codes, scales, edges):
    x = np.empty(codes.size, np.float32)
    for block in range(scales.size):
        part, wide, scale = codes[edges[block] : edges[block + 1]], x[edges[block] : edges[block + 1]], scales[block]
        for i in range(part.size):
            wide[i] = np.float32(part[i]) * scale if part[i] != -128 else np.float32(np.nan)
    return x


def _coded(loop: Any, bits: int, x: Array, edges: np.ndarray, *more: Array) -> tuple[Array, Array]:
    places = code_places(edges, bits)
    codes, scales = np.empty(places[-1], np.uint8), np.empty(len(edges) - 1, np.float32)
    loop(np.ascontiguousarray(x), *more, edges, codes, places, scales)
    return codes, scales


def to_int4(x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded(_to_int4, 4, x, edges, indices)


@compiled
def _to_int4(x, indices, edges, codes, places, scales):
    bits, words = x.view(np.uint32), scales.view(np.uint32)
    safe, found = np.zeros(SCALED, np.uint32), np.zeros(SCALED, np.uint8)
    for block in range(scales.size):
        lo, hi = edges[block], edges[block + 1]
        magnitudes = safe[: hi - lo].view(np.float32)
        smallest, largest = _finite(bits[lo:hi], safe)
        # The larger magnitude rounded up, and the smaller one down.
        words[block] = (min(largest, TOP) + SHARE) & ~SHARE
        divisor = scales[block] if words[block] > 0 else np.float32(1)
        words[block] |= np.uint32(min(real_of(smallest) / divisor * np.float32(256), np.float32(SHARE)))
        low, step = _spaced(words[block], 7)
        _spread(magnitudes, bits[lo:hi], indices[lo:hi], low, step, found)
        _pack(found, magnitudes.size, codes[places[block] : places[block + 1]], 4)


@compiled
def _finite(bits, safe):
    """Write magnitudes as bits to ``safe``, 0 for NaN and Inf; return the smallest and the largest."""
    smallest, largest = SIGN, np.uint32(0)
    for i in range(bits.size):
        magnitude = bits[i] & SIGN
        magnitude = magnitude if magnitude < INFINITE else np.uint32(0)
        safe[i] = magnitude
        smallest, largest = min(smallest, magnitude), max(largest, magnitude)
    return smallest, largest


@compiled
def _spread(magnitudes, bits, indices, low, step, codes):
    divisor = step if step > 0 else np.float32(1)
    for i in range(magnitudes.size):
        steps = (magnitudes[i] - low) / divisor
        lower = np.floor(steps)
        chance = np.float32(mixed(mixed(np.uint32(indices[i])) ^ bits[i]) >> np.uint32(8))
        lower += np.float32((steps - lower) * DRAWS > chance)
        level = np.uint8(min(max(lower, np.float32(0)), np.float32(7)))
        codes[i] = _signed(bits[i], level, low, 8)


@compiled
def _signed(bits, level, low, half):
    """Return the code of a value: its level, and ``half`` more if it is negative or not finite."""
    finite = (bits & SIGN) < INFINITE
    negative = bits > SIGN and (level > 0 or low > 0)
    return np.uint8(level + half * negative) if finite else np.uint8(half)


@compiled
def _spaced(word, steps):
    high = real_of(word & ~SHARE)
    low = high * (np.float32(word & SHARE) / np.float32(256))
    return low, (high - low) / np.float32(steps)


@compiled
def _pack(found, count, codes, bits):
    each = 8 // bits
    found[count:] = 0
    for i in range(codes.size):
        byte = np.uint8(0)
        for j in range(each):
            byte |= found[i * each + j] << np.uint8(bits * j)
        codes[i] = byte


def to_int2(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded(_to_int2, 2, x, edges)


@compiled
def _to_int2(x, edges, codes, places, scales):
    bits, words = x.view(np.uint32), scales.view(np.uint32)
    safe, found, parts = np.zeros(SCALED, np.uint32), np.zeros(SCALED, np.uint8), np.empty(SCALED, np.uint32)
    for block in range(scales.size):
        own = bits[edges[block] : edges[block + 1]]
        smallest, largest = _finite(own, safe)
        # Add up magnitudes as whole parts of the largest, so that their order does not matter.
        whole = parts[: own.size]
        total = _parts(safe.view(np.float32), real_of(largest), whole)
        # Cut the block at its mean, and take the means of both parts.
        cut = np.uint32(max(total // own.size, 1))
        above, many = _above(whole, cut)
        upper, lower = above // max(many, 1), (total - above) // max(own.size - many, 1)
        high = np.float32(upper) / DRAWS * real_of(largest)
        scales[block] = high
        words[block] &= ~SHARE
        if smallest > 0:
            words[block] |= np.uint32(min((512 * lower + upper) // (2 * upper), SHARE))
        low, _ = _spaced(words[block], 1)
        for i in range(own.size):
            found[i] = _signed(own[i], np.uint8(whole[i] >= cut), low, 2)
        _pack(found, own.size, codes[places[block] : places[block + 1]], 2)


@compiled
def _parts(magnitudes, largest, parts):
    divisor, total = largest if largest > 0 else np.float32(1), 0
    for i in range(parts.size):
        parts[i] = np.uint32(magnitudes[i] / divisor * DRAWS)
    for i in range(parts.size):
        total += np.int64(parts[i])
    return total


@compiled
def _above(parts, cut):
    total = many = 0
    for i in range(parts.size):
        reached = parts[i] >= cut
        total += np.int64(parts[i]) if reached else 0
        many += reached
    return total, many


def to_log4(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded(_to_log4, 4, x, edges)


@compiled
def _to_log4(x, edges, codes, places, scales):
    bits, words = x.view(np.uint32), scales.view(np.uint32)
    exponents, found = np.empty(SCALED, np.int32), np.empty(SCALED, np.uint8)
    for block in range(scales.size):
        own = bits[edges[block] : edges[block + 1]]
        exponents[: own.size] = own >> np.uint32(23)
        exponents[own.size :] = 0
        infinite = exponents == EXPONENTS
        exponents[infinite] = 0
        top, has_inf = exponents.max(), infinite.any()
        found[:] = np.minimum((top - exponents) // 2, 15 - has_inf)
        found[infinite] = 15
        _pack(found, SCALED, codes[places[block] : places[block + 1]], 4)
        words[block] = np.uint32((top + (EXPONENTS + 1) * has_inf) << 23)


def from_log4(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    x = np.empty(edges[-1] if len(edges) else 0, np.float32)
    _from_log4(codes, scales, edges, code_places(edges, 4), x)
    return x


@compiled
def _from_log4(codes, scales, edges, places, x):
    bits, words = x.view(np.uint32), scales.view(np.uint32)
    for block in range(scales.size):
        word = np.int64(words[block] >> 23)
        for i in range(edges[block + 1] - edges[block]):
            level = np.int64(codes[places[block] + i // 2] >> (i % 2 * 4) & 15)
            exponent = max((word & EXPONENTS) - 2 * level, 0)
            bits[edges[block] + i] = (EXPONENTS if word > EXPONENTS and level == 15 else exponent) << 23


def from_levels(codes: Array, scales: Array, edges: np.ndarray, bits: int) -> Array:
    x = np.empty(edges[-1] if len(edges) else 0, np.float32)
    _from_levels(codes, scales, edges, code_places(edges, bits), bits, x)
    return x


@compiled
def _from_levels(codes, scales, edges, places, bits, x):
    half, each, words = 1 << (bits - 1), 8 // bits, scales.view(np.uint32)
    values = np.empty(2 * half, np.float32)
    for block in range(scales.size):
        low, step = _spaced(words[block], half - 1)
        for level in range(half):
            values[level] = low + np.float32(level) * step
            values[half + level] = -values[level]
        if low == 0:
            values[half] = np.nan
        part, packed = x[edges[block] : edges[block + 1]], codes[places[block] : places[block + 1]]
        for j in range(each):
            found = part[j::each]
            for i in range(found.size):
                found[i] = values[packed[i] >> (j * bits) & (2 * half - 1)]


def to_ballots(values: Array, indices: Array, size: int) -> tuple[Array, Array, Array]:
    coded, rounded = np.empty(len(indices), index_dtype(BALLOTS * size)), np.empty_like(values)
    lows = np.empty(len(values), np.int32)
    _to_ballots(values, indices, coded, lows, rounded)
    return coded, lows.view(np.float32), rounded


_lowest = compiled(lowest)


@compiled
def _to_ballots(values, indices, coded, lows, rounded):
    bits = bits_of(values)
    total, least, count = np.int64(0), np.int64(INF_BITS), np.int64(0)
    for i in range(bits.size):
        magnitude = np.int64(bits[i]) & 0x7FFFFFFF
        total += magnitude
        least = min(least, magnitude if magnitude else least)
        count += magnitude != 0
    low = _lowest(total, least, count)
    lows[:] = low
    for i in range(bits.size):
        magnitude = np.int64(bits[i]) & 0x7FFFFFFF
        level = min(max((magnitude - low) >> SHIFT, 0), NOT_FINITE - 1) if magnitude < INF_BITS else NOT_FINITE
        code = (2 * level + (bits[i] < 0 and level < NOT_FINITE)) if magnitude else NO_VOTE
        coded[i] = BALLOTS * np.int64(indices[i]) + code
        rounded[i] = _decoded(indices[i], code, low)


@compiled
def _decoded(index, code, low):
    level, negative = np.uint32(code >> 1), np.uint32(code & 1)
    inside = (np.uint32(np.uint32(index) * HASH) & np.uint32(LEVEL - 1)) ^ np.uint32(negative << np.uint32(4))
    bits = np.uint32(np.uint32(low) + np.uint32(level * np.uint32(LEVEL)) + inside)
    bits = np.uint32(INF_BITS) if level == NOT_FINITE else min(bits, np.uint32(INF_BITS - 1))
    return real_of(np.uint32(0) if code == NO_VOTE else np.uint32(bits | np.uint32(negative << np.uint32(31))))


def from_ballots(messages: np.ndarray, coded: Array, lows: Array, size: int) -> tuple[Array, Array]:
    indices, values = np.empty(len(coded), index_dtype(size)), np.empty(len(coded), np.float32)
    _from_ballots(messages, coded, lows.view(np.int32), indices, values)
    return indices, values


@compiled
def _from_ballots(messages, coded, lows, indices, values):
    for m in range(messages.size):
        first, entries = messages[m].first, messages[m].entries
        low = lows[messages[m].block] if entries else np.int32(0)
        for i in range(first, first + entries):
            indices[i] = coded[i] // BALLOTS
            values[i] = _decoded(coded[i] // BALLOTS, coded[i] & (BALLOTS - 1), low)
