"""Values in eight, four or two bits by whole-array functions: levels that a block's values share.

Eight bits count steps of a scale. Fewer bits are a sign and one of a few magnitudes, evenly spaced between two that
share a word: the upper 24 bits of the larger one in float32, and the smaller one in 256ths of the larger. So values of
half precision never round to more than their largest. If the smaller one is 0, its negative is NaN.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array, index_dtype, magnitude_bits
from sparse_mpi.kernels.base import BALLOTS, SCALED, code_places

LARGEST = np.float32(2.0**128 - 2.0**107)  # the scale made of it, times 127, is finite whichever way it is rounded
HASH = np.uint32(2246822519)  # odd, and unlike the multiplier by which entries are dealt out to ranks
SHIFT = 21  # a level is a quarter of an octave, 2^21 in magnitude bits of float32
LEVEL = 1 << SHIFT
NOT_FINITE = 7  # the level of NaN and Inf
NO_VOTE = 15  # the code of zero
INF_BITS = 0x7F800000
LARGEST_SHORT = np.uint32(0x7C010000)  # likewise of bfloat16, as bits
EXPONENTS = 255  # largest exponent of float32, that of Inf and NaN
TOP = np.uint32(0x7F7FFF00)  # the largest magnitude of a word
SHARE = np.uint32(0xFF)  # the bits of a word that hold the smaller magnitude
DRAWS = np.float32(1 << 24)  # values that 24 hash bits have, and the parts in which `to_int2` adds up magnitudes


def to_int8(x: Array, indices: Array, edges: np.ndarray, short: bool = False) -> tuple[Array, Array]:
    # The scale of each block.
    finite, lengths = np.isfinite(x), np.diff(edges)
    safe = np.where(finite, x, np.float32(0))
    scales = np.minimum(np.maximum.reduceat(np.abs(safe), edges[:-1]), LARGEST) / np.float32(127)
    # Each value in steps of it, rounded up where its fraction exceeds 24 hash bits.
    steps = safe / np.where(scales > 0, scales, np.float32(1)).repeat(lengths)
    lower = np.floor(steps)
    up = (steps - lower) * DRAWS > hashed(indices, x.view(np.uint32)) >> 8
    codes = np.where(finite, np.clip(lower + up, -127, 127), np.float32(-128))
    if short:
        scales = np.minimum(rounded_up(scales.view(np.uint32)) & np.uint32(0xFFFF0000), LARGEST_SHORT).view(np.float32)
    return codes.astype(np.int8), scales


def rounded_up(bits: Array) -> Array:
    """Return bits of float32 numbers, not NaN, with upper halves rounded, ties to even."""
    return bits + 0x7FFF + (bits >> 16 & 1)


def hashed(x: Array, key: Array | np.uint32) -> Array:
    """Return 32 hash bits of integers: MurmurHash3's finalizer of ``x``, and again after XOR with ``key``."""
    bits: Array = x.astype(np.uint32)
    for mask in (key, np.uint32(0)):
        bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
        bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
        bits ^= bits >> 16
        bits ^= mask
    return bits


def from_int8(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    steps = np.where(codes == -128, np.float32(np.nan), codes.astype(np.float32))
    return steps * scales.repeat(np.diff(edges))


def to_int4(x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
    # The levels of each block: from the smallest magnitude, or a little less, to the largest, or a little more.
    blocks = _Blocks(x, edges)
    largest, smallest = blocks.rows.max(axis=1), blocks.smallest
    high = (np.minimum(largest.view(np.uint32), TOP) + SHARE) & ~SHARE
    shares = smallest / np.where(high > 0, high.view(np.float32), np.float32(1)) * np.float32(256)
    words = high | np.minimum(shares, np.float32(SHARE)).astype(np.uint32)
    low, step = _spaced(words, 7)
    # Each magnitude in steps from there, rounded up where its fraction exceeds 24 hash bits.
    steps = (blocks.magnitudes - low[blocks.of]) / np.where(step > 0, step, np.float32(1))[blocks.of]
    lower = np.floor(steps)
    up = (steps - lower) * DRAWS > hashed(indices, x.view(np.uint32)) >> 8
    levels = np.clip(lower + up, 0, 7).astype(np.uint8)
    return blocks.packed(levels, low, 4), words.view(np.float32)


def to_int2(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    # Add up the magnitudes of each block as whole parts of the largest, so that their order does not matter.
    blocks = _Blocks(x, edges)
    largest, counts = blocks.rows.max(axis=1), np.diff(edges)
    parts = (blocks.rows / np.where(largest > 0, largest, np.float32(1))[:, None] * DRAWS).astype(np.int64)
    totals = parts.sum(axis=1)
    # Cut the block at its mean, and take the means of both parts.
    above = parts >= np.maximum(totals // counts, 1)[:, None]
    sums, many = (parts * above).sum(axis=1), above.sum(axis=1)
    upper, lower = sums // np.maximum(many, 1), (totals - sums) // np.maximum(counts - many, 1)
    high = (upper.astype(np.float32) / DRAWS * largest).view(np.uint32) & ~SHARE
    shares = np.minimum((512 * lower + upper) // (2 * np.maximum(upper, 1)), int(SHARE)) * (blocks.smallest > 0)
    words = high | shares.astype(np.uint32)
    levels = above[blocks.of, blocks.places].astype(np.uint8)
    return blocks.packed(levels, _spaced(words, 1)[0], 2), words.view(np.float32)


class _Blocks:
    """Values ``(n,)`` in blocks; NaN and Inf have magnitude 0."""

    def __init__(self, x: Array, edges: np.ndarray) -> None:
        self.x, self.edges = x, edges
        self.finite = np.isfinite(x)
        self.magnitudes = np.where(self.finite, np.abs(x), np.float32(0))
        self.of, self.places = _numbered_blocks(edges)
        self.rows = self.filled(self.magnitudes, 0)  # (b, SCALED)

    def filled(self, values: Array, rest: float) -> Array:
        rows = np.full((len(self.edges) - 1, SCALED), rest, values.dtype)
        rows[self.of, self.places] = values
        return rows

    @property
    def smallest(self) -> Array:
        """Return the smallest magnitude of each block ``(b,)``: 0 if a value is 0 or not finite."""
        return self.filled(self.magnitudes, np.inf).min(axis=1)

    def packed(self, levels: Array, low: Array, bits: int) -> Array:
        """Return codes ``(bytes,)``: each value's level and, above, its sign; zeros are positive."""
        half = 1 << (bits - 1)
        zero = (levels == 0) & (low[self.of] == 0)
        codes = np.where(self.finite, levels + half * ((self.x < 0) & ~zero), half).astype(np.uint8)
        each = 8 // bits
        shares = self.filled(codes, 0).reshape(-1, SCALED // each, each) << np.arange(0, 8, bits, dtype=np.uint8)
        kept = np.arange(SCALED // each) < np.diff(code_places(self.edges, bits))[:, None]
        return shares.sum(axis=2, dtype=np.uint8)[kept]


def from_levels(codes: Array, scales: Array, edges: np.ndarray, bits: int) -> Array:
    half = 1 << (bits - 1)
    of, places = _numbered_blocks(edges)
    starts, each = code_places(edges, bits), 8 // bits
    shifts = (places % each * bits).astype(np.uint8)
    own = codes[starts[of] + places // each] >> shifts & np.uint8(2 * half - 1)
    low, step = _spaced(scales.view(np.uint32), half - 1)
    magnitudes = low[of] + (own % half).astype(np.float32) * step[of]
    values = np.where(own < half, magnitudes, -magnitudes)
    return np.where((own == half) & (low[of] == 0), np.float32(np.nan), values)


def to_log4(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    # The exponent e of float32 tells that a number is in [2^e, 2^(e + 1)); 2^e stands for it and for half of it
    of, places = _numbered_blocks(edges)
    rows = np.zeros((len(edges) - 1, SCALED), np.int32)
    rows[of, places] = x.view(np.uint32) >> np.uint32(23)
    # A scale with its sign bit tells that the last level is Inf in its block
    infinite = rows == EXPONENTS
    rows[infinite] = 0
    top, has_inf = rows.max(axis=1), infinite.any(axis=1)
    levels = np.minimum((top[:, None] - rows) // 2, 15 - has_inf[:, None]).astype(np.uint8)
    levels[infinite] = 15
    pairs = levels[:, 0::2] | levels[:, 1::2] << np.uint8(4)
    kept = np.arange(SCALED // 2) < np.diff(code_places(edges, 4))[:, None]
    scales = (top + (EXPONENTS + 1) * has_inf).astype(np.uint32) << np.uint32(23)
    return pairs[kept], scales.view(np.float32)


def from_log4(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    of, places = _numbered_blocks(edges)
    levels = codes[code_places(edges, 4)[of] + places // 2] >> (places % 2 * 4).astype(np.uint8) & np.uint8(15)
    top = (scales.view(np.uint32) >> np.uint32(23)).astype(np.int32)[of]
    exponents = np.maximum((top & EXPONENTS) - 2 * levels.astype(np.int32), 0)
    exponents[(top > EXPONENTS) & (levels == 15)] = EXPONENTS
    return (exponents.astype(np.uint32) << np.uint32(23)).view(np.float32)


def _spaced(words: Array, steps: int) -> tuple[Array, Array]:
    high = (words & ~SHARE).view(np.float32)
    low = high * ((words & SHARE).astype(np.float32) / np.float32(256))
    return low, (high - low) / np.float32(steps)


def _numbered_blocks(edges: np.ndarray) -> tuple[Array, Array]:
    counts = np.diff(edges)
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - edges[:-1][of]


def to_ballots(values: Array, indices: Array, size: int) -> tuple[Array, Array, Array]:
    bits = magnitude_bits(values)
    there = bits[bits > 0]
    low = lowest(int(there.sum(dtype=np.int64)), int(there.min(initial=INF_BITS)), len(there))
    levels = np.where(bits < INF_BITS, np.clip((bits - low) >> SHIFT, 0, NOT_FINITE - 1), NOT_FINITE)
    codes = 2 * levels + ((values.view(np.int32) < 0) & (levels < NOT_FINITE))
    codes[bits == 0] = NO_VOTE
    coded = indices.astype(index_dtype(BALLOTS * size)) * BALLOTS + codes
    lows = np.full(len(codes), low, np.int32)
    return coded.astype(index_dtype(BALLOTS * size)), lows.view(np.float32), _decoded(indices, codes, lows)


def from_ballots(messages: np.ndarray, coded: Array, lows: Array, size: int) -> tuple[Array, Array]:
    indices = (coded // BALLOTS).astype(index_dtype(size))
    return indices, _decoded(indices, coded & (BALLOTS - 1), _lows_of(messages, lows))


def _lows_of(messages: np.ndarray, lows: Array) -> Array:
    """Return each entry's bits ``(n,)`` int32 of the smallest magnitude, from the scales of all messages."""
    there = messages[messages["entries"] > 0]
    return lows.view(np.int32)[there["block"]].repeat(there["entries"])


def _decoded(indices: Array, codes: Array, lows: Array) -> Array:
    """Return float32 values ``(m,)``; each sender's lowest level begins at magnitude bits ``lows``."""
    levels, negative = codes.astype(np.uint32) >> 1, codes.astype(np.uint32) & 1
    inside = ((indices.astype(np.uint32) * HASH) & np.uint32(LEVEL - 1)) ^ (negative << 4)
    bits = lows.view(np.uint32) + levels * np.uint32(LEVEL) + inside  # less than 2^32
    bits = np.where(levels == NOT_FINITE, np.uint32(INF_BITS), np.minimum(bits, np.uint32(INF_BITS - 1)))
    return np.where(codes == NO_VOTE, np.uint32(0), bits | negative << 31).view(np.float32)


def lowest(total: int, least: int, count: int) -> int:
    """Return the magnitude bits at which the lowest level begins, as a rule the smallest magnitude's; 16 are 0."""
    return min(max(least, total // max(count, 1) - NOT_FINITE // 2 * LEVEL), INF_BITS) & ~0xFFFF
