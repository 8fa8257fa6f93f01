"""Kernels made of whole-array functions, for NumPy without Numba and for CuPy: several passes, but no compiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse_mpi.arrays import Array, is_device, like, namespace, to_host, widened
from sparse_mpi.kernels.base import (
    FIELDS,
    MESSAGE,
    MISCOUNTED,
    SKETCH,
    SKETCHED_ROWS,
    MalformedMessage,
    Moments,
    index_dtype,
    magnitude_bits,
)
from sparse_mpi.kernels.levels import from_int8, from_levels, mixed, to_int2, to_int4, to_int8

__all__ = [
    "accumulate",
    "accumulate_select",
    "add",
    "clear",
    "contains",
    "count",
    "from_int8",
    "from_levels",
    "gather",
    "histogram",
    "kth_bin",
    "lay_out",
    "mark",
    "merge",
    "merge_runs",
    "misplaced",
    "moments",
    "read_messages",
    "select",
    "sketch",
    "subtract",
    "subtract_dense",
    "to_bfloat16",
    "to_float16",
    "to_int2",
    "to_int4",
    "to_int8",
    "top_k_rows",
    "truncate",
    "write_messages",
]


def count(x: Array, thresholds: np.ndarray) -> np.ndarray:
    """See `base.Kernels.count`."""
    bits = magnitude_bits(widened(x))
    xp = namespace(bits)
    bins = xp.searchsorted(xp.asarray(thresholds.astype(bits.dtype)), bits, side="right")
    counts = to_host(xp.bincount(bins, minlength=len(thresholds) + 1)).astype(np.int64)
    return np.cumsum(counts[::-1])[::-1][1:]


def histogram(x: Array, shift: int, prefix: int, width: int) -> Array:
    """See `base.Kernels.histogram`."""
    x = widened(x)
    bits = magnitude_bits(x)
    if prefix:
        bits = bits[(bits >> shift) == prefix]
    elif shift < 8 * x.itemsize - 1:
        bits = bits[bits < (1 << shift)]
    bins = (bits >> (shift - width)) & ((1 << width) - 1)
    return namespace(x).bincount(bins, minlength=1 << width).astype(np.int64, copy=False)


def kth_bin(counts: Array, k: int) -> tuple[int, int, int]:
    """See `base.Kernels.kth_bin`."""
    xp = namespace(counts)
    at_least = xp.cumsum(counts[::-1])[::-1]
    chosen = xp.count_nonzero(at_least >= k) - 1
    number, reached, inside = to_host(xp.stack([xp.asarray(chosen), at_least[chosen], counts[chosen]])).tolist()
    return number, reached, inside


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.select`."""
    x = widened(x)
    positions = namespace(x).flatnonzero(magnitude_bits(x) >= threshold)
    if len(positions) > most:
        return None
    return positions.astype(index_dtype(len(x))), x[positions]


def accumulate(residual: Array, gradient: Array) -> None:
    """See `base.Kernels.accumulate`."""
    residual += widened(gradient)


def accumulate_select(residual: Array, gradient: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.accumulate_select`."""
    accumulate(residual, gradient)
    return select(residual, threshold, most)


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    """See `base.Kernels.top_k_rows`."""
    xp = namespace(matrix)
    order = xp.argsort(-magnitude_bits(matrix), axis=1, kind="stable")[:, :k]
    columns = xp.sort(order, axis=1)
    return columns.astype(np.int32), xp.take_along_axis(matrix, columns, axis=1)


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    """See `base.Kernels.to_bfloat16`."""
    with np.errstate(over="ignore"):
        bits = x.astype(np.float32).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits += 0x7FFF + ((bits >> 16) & 1)
    bits >>= 16
    bits[nan] = 0x7FC0
    codes = bits.astype(np.uint16)
    if back is not None:
        back[...] = widened(codes)
    return codes


def to_float16(x: Array) -> Array:
    """See `base.Kernels.to_float16`."""
    xp = namespace(x)
    codes = xp.clip(x, np.float32(-65504), np.float32(65504)).astype(np.float16).view(np.uint16)
    special = xp.where(xp.isnan(x), 0x7E00, (x.view(np.uint32) >> 16 & 0x8000) | 0x7C00)
    return xp.where(xp.isfinite(x), codes, special).astype(np.uint16).view(np.float16)


def moments(x: Array, threshold: int) -> Moments:
    """See `base.Kernels.moments`."""
    xp, x = namespace(x), widened(x)
    magnitudes = xp.abs(x[magnitude_bits(x) >= threshold]).astype(np.float64)
    if len(magnitudes) == 0:
        return Moments(0, 0.0, 0.0, 0.0, 0, 0.0)
    positive = magnitudes[magnitudes != 0]
    return Moments(
        len(magnitudes),
        float(magnitudes.sum()),
        float(magnitudes.dot(magnitudes)),
        float(xp.log(positive).sum()),
        len(positive),
        float(magnitudes.max()),
    )


def sketch(x: Array, seed: int) -> np.ndarray:
    """See `base.Kernels.sketch`. Works in chunks, so that signs and positions need little memory."""
    xp, key, total = namespace(x), np.uint32(seed), np.zeros(SKETCH)
    for start in range(0, len(x), SKETCHED_ROWS * SKETCH):
        chunk = x[start : start + SKETCHED_ROWS * SKETCH]
        rows = xp.zeros((-(-len(chunk) // SKETCH), SKETCH))
        rows.reshape(-1)[: len(chunk)] = chunk
        # Signs: the bits of hashes that 32 rows have in common.
        numbers = start // SKETCH + xp.arange(len(rows))
        hashed = (numbers // 32 * SKETCH)[:, None] + xp.arange(SKETCH)
        bits = mixed(mixed(hashed.astype(np.uint32)) ^ key) >> (numbers % 32).astype(np.uint32)[:, None] & 1
        rows = xp.where(bits == 1, -rows, rows)
        # Buckets: the positions in a row, rotated by a hash of its number.
        by = mixed(mixed(numbers.astype(np.uint32)) ^ ~key) % SKETCH
        source = (xp.arange(SKETCH) - by.astype(np.int64)[:, None]) % SKETCH
        total += to_host(xp.take_along_axis(rows, source, axis=1).sum(axis=0))
    return total


def add(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.add`."""
    x[indices] += values


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    xp = namespace(x)
    x[indices] = xp.where(xp.isfinite(values), x[indices] - values, 0)


def subtract_dense(x: Array, values: Array) -> None:
    """See `base.Kernels.subtract_dense`."""
    xp = namespace(x)
    with np.errstate(invalid="ignore"):
        x -= values
    x[~xp.isfinite(values)] = 0


def gather(x: Array, indices: Array) -> Array:
    """See `base.Kernels.gather`."""
    return x[indices]


def clear(x: Array, indices: Array) -> None:
    """See `base.Kernels.clear`."""
    x[indices] = 0


def mark(bits: Array, indices: Array) -> None:
    """See `base.Kernels.mark`."""
    xp = namespace(bits)
    xp.bitwise_or.at(bits, indices >> 3, xp.left_shift(1, indices & 7).astype(np.uint8))


def merge(indices: Array, values: Array, size: int, low: int = 0) -> tuple[Array, Array]:
    """See `base.Kernels.merge`."""
    xp = namespace(values)
    # Sort the pairs; stable, so that values of one index keep their order.
    order = xp.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    first = xp.ones(len(indices), bool)
    first[1:] = indices[1:] != indices[:-1]
    # Begin each sum with its first value, and add the others in order.
    totals = values[first]
    if len(totals) < len(values):
        _add_in_order(totals, (xp.cumsum(first) - 1)[~first], values[~first])
    return indices[first], totals


def merge_runs(runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
    """See `base.Kernels.merge_runs`."""
    indices, values = map(namespace(runs[0][1]).concatenate, zip(*runs, strict=True))
    return merge(indices, values, size, low)


def _add_in_order(totals: Array, groups: Array, values: Array) -> None:
    """Add ``values`` to ``totals[groups]`` in place, one after the other; ``groups`` ascends."""
    xp = namespace(totals)
    if xp is np:
        np.add.at(to_host(totals), groups, values)
        return
    while len(groups):  # atomics would add in any order: add the first entry of each group, then the rest
        first = xp.ones(len(groups), bool)
        first[1:] = groups[1:] != groups[:-1]
        totals[groups[first]] += values[first]
        groups, values = groups[~first], values[~first]


def truncate(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
    """See `base.Kernels.truncate`."""
    if len(values) <= k:
        return indices, values
    xp = namespace(values)
    bits = magnitude_bits(values)
    kth = xp.partition(bits, len(bits) - k)[len(bits) - k]
    keep = bits > kth
    ties = xp.flatnonzero(bits == kth)
    keep[ties[: k - int(xp.count_nonzero(keep))]] = True
    return indices[keep], values[keep]


def contains(indices: Array, sought: Array) -> Array:
    """See `base.Kernels.contains`."""
    xp = namespace(indices)
    if len(indices) == 0:
        return xp.zeros(len(sought), bool)
    return indices[xp.minimum(xp.searchsorted(indices, sought), len(indices) - 1)] == sought


# Packed messages by whole-array functions, which unpack every bit of a message into a byte.


NUMBER_LIMITS, NUMBER_BYTES = np.array([1 << 8, 1 << 16, 1 << 32]), np.array([1, 2, 4, 8])  # see `count_bytes`


def count_bytes(widths: np.ndarray) -> np.ndarray:
    """Return the bytes, 1, 2, 4 or 8, that hold any number below each of ``widths``."""
    return NUMBER_BYTES[NUMBER_LIMITS.searchsorted(widths)]


def lay_out(
    entries: np.ndarray,
    regions: np.ndarray,
    numbers: np.ndarray,
    codes: np.ndarray,
    blocks: np.ndarray,
    tail: int = 0,
) -> np.ndarray:
    """See `base.Kernels.lay_out`."""
    widths = regions[:, 1] - regions[:, 0]
    shifts, spread, spans = _index_forms(entries, widths)
    # The bytes of the five sections of each message, in the order in which they are written.
    sections = np.empty((len(entries), 5), np.int64)
    sections[:, 0] = numbers * (entries > 0)
    sections[:, 1] = codes
    sections[:, 2] = 4 * blocks
    sections[:, 3] = _bytes(shifts * entries)
    sections[:, 4] = _bytes(spans) + tail * (entries > 0)
    # Sections follow one another without gaps, also from one message to the next.
    ends = sections.cumsum().reshape(-1, 5)
    fields = (entries, before(entries), regions[:, 0], shifts, spread, spans, *map(before, (blocks, codes)))
    words = np.empty((len(entries), FIELDS), np.int64)  # a column is a field of `MESSAGE`
    for column, field in enumerate(fields):
        words[:, column] = field
    words[:, 8:13], words[:, 13] = ends - sections, ends[:, -1]
    return words.view(MESSAGE).reshape(-1)


def _index_forms(entries: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose the shorter form of the indices of each message, of the two that `wire.packed` describes.

    Returns:
        Three arrays ``(m,)`` int64: low bits of an index; 1 if the i-th high bit is moved on by i, which is Elias-Fano,
        else 0; bits of the high section.
    """
    shifts = np.maximum(_bit_length(widths // np.maximum(entries, 1)) - 1, 0)
    spans = entries + ((widths - 1) >> shifts)
    bitmap = _bytes(widths) < _bytes(shifts * entries) + _bytes(spans)
    sparse = (entries > 0) & (entries < widths)
    spread = sparse & ~bitmap
    return shifts * spread, spread.astype(np.int64), np.where(bitmap, widths, spans) * sparse


def _bit_length(x: np.ndarray) -> np.ndarray:
    """Return the bits that each non-negative integer needs as a float64, 0 for 0."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def _bytes(bits: np.ndarray) -> np.ndarray:
    """Return how many bytes hold so many bits."""
    return (bits + 7) >> 3


def before(counts: np.ndarray) -> np.ndarray:
    """Return the exclusive prefix sum."""
    return counts.cumsum() - counts


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    """See `base.Kernels.write_messages`."""
    xp = namespace(indices)
    m = _Entries(messages, indices)
    offsets = indices - m.of("start")
    bits = xp.zeros(8 * int(messages["end"][-1]), np.uint8)
    # High bits: one for each entry, at its high part, and with Elias-Fano as many places on as its number.
    sparse = m.of("span") > 0
    places = 8 * m.of("highs") + (offsets >> m.of("shift")) + m.of("spread") * m.numbers
    bits[places[sparse]] = 1
    # Low bits: the lowest of all entries, then the next of all that have it, and so on.
    for bit, (chosen, at) in enumerate(m.low_bits()):
        bits[at] = (offsets[chosen] >> bit) & 1
    buffer = xp.packbits(bits, bitorder="little")
    # Numbers, codes and scales are whole bytes.
    digits = (messages["entries"] - 1).astype("<i8").view(np.uint8).reshape(-1, 8)
    digits = digits[np.arange(8) < (messages["values"] - messages["head"])[:, None]]
    buffer[like(_span(messages["head"], messages["values"]), buffer)] = like(digits, buffer)
    buffer[like(_span(messages["values"], messages["scales"]), buffer)] = codes.view(np.uint8)
    buffer[like(_span(messages["scales"], messages["lows"]), buffer)] = scales.view(np.uint8)
    return buffer


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    """See `base.Kernels.read_messages`."""
    xp = namespace(buffer)
    m = _Entries(messages, buffer)
    bits = xp.unpackbits(buffer, bitorder="little")
    # High bits: the i-th set bit of a message is that of its i-th entry, and its position gives the high part back.
    offsets, sparse = m.numbers.copy(), xp.flatnonzero(m.of("span") > 0)
    flags = bits[like(_span(8 * messages["highs"], 8 * messages["highs"] + messages["span"]), buffer)]
    miscounted = _miscounted(flags, messages) if not is_device(flags) else np.zeros(0, np.int64)
    if len(miscounted):
        raise MalformedMessage(int(miscounted[0]), len(messages), MISCOUNTED)
    before = like(np.cumsum(messages["span"]) - messages["span"], buffer)[m.owners]
    highs = (xp.flatnonzero(flags) - before[sparse]) - (m.of("spread") * m.numbers)[sparse]
    offsets[sparse] = highs << m.of("shift")[sparse]
    # Low bits, one of all entries at a time.
    for bit, (chosen, at) in enumerate(m.low_bits()):
        offsets[chosen] += bits[at].astype(np.int64) << bit
    indices = (offsets + m.of("start")).astype(index_dtype(size))
    codes = buffer[like(_span(messages["values"], messages["scales"]), buffer)]
    return indices, codes, buffer[like(_span(messages["scales"], messages["lows"]), buffer)].view(np.float32)


def _miscounted(flags: np.ndarray, messages: np.ndarray) -> np.ndarray:
    """Return the numbers of the messages that have other than as many set bits, of ``flags``, as entries."""
    owners, sparse = np.repeat(np.arange(len(messages)), messages["span"]), messages["span"] > 0
    counts = np.bincount(owners[flags != 0], minlength=len(messages))
    return np.flatnonzero(sparse & (counts != messages["entries"]))


def misplaced(indices: Array, counts: np.ndarray, low: int, high: int) -> int:
    """See `malformed.HostKernels.misplaced`."""
    ends = counts.cumsum()
    rises = np.empty(len(indices), bool)
    rises[1:] = indices[1:] > indices[:-1]
    there = np.flatnonzero(counts)
    rises[(ends - counts)[there]] = indices[(ends - counts)[there]] >= low
    rises[ends[there] - 1] &= indices[ends[there] - 1] <= high
    return -1 if rises.all() else int(ends.searchsorted(rises.argmin(), side="right"))


class _Entries:
    """What each entry needs to know of its message, as arrays ``(nnz,)`` of the library of ``x``."""

    def __init__(self, messages: np.ndarray, x: Array) -> None:
        self.messages, self.x = messages, x
        self.owners = like(np.repeat(np.arange(len(messages)), messages["entries"]), x)
        self.numbers = namespace(x).arange(len(self.owners)) - self.of("first")  # within the message

    def of(self, field: str) -> Array:
        """Return for every entry ``(nnz,)`` a field of the `MESSAGE` it is in."""
        return like(np.ascontiguousarray(self.messages[field]), self.x)[self.owners]

    def low_bits(self) -> list[tuple[Array, Array]]:
        """Return for each low bit, from the lowest up, the entries that have it and where in the buffer it stands."""
        xp, shifts = namespace(self.x), self.of("shift")
        places = 8 * self.of("lows") + self.numbers * shifts
        chosen = (xp.flatnonzero(shifts > bit) for bit in range(self.messages["shift"].max()))
        return [(entries, places[entries] + bit) for bit, entries in enumerate(chosen)]


def _span(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return all positions of the ranges from ``starts`` to ``stops``, one range after the other."""
    lengths = stops - starts
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
