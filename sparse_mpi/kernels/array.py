"""Kernels of whole-array functions, for NumPy without Numba: several passes, no compiler.

`add`, `subtract`, `gather`, `clear`, `mark` and `to_float16` serve devices too; `split_counts`, `to_pairs` and
`from_pairs` are at least as fast as compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import frexp
from types import SimpleNamespace

import numpy as np

from sparse_mpi.arrays import Array, first_of, index_dtype, magnitude_bits, namespace, widened
from sparse_mpi.kernels.adam import adam
from sparse_mpi.kernels.base import (
    LEAST_SQUARE,
    MESSAGE,
    MISCOUNTED,
    SKETCH,
    SKETCHED_ROWS,
    MalformedMessage,
    Moments,
    Number,
)
from sparse_mpi.kernels.levels import (
    from_ballots,
    from_int8,
    from_levels,
    from_log4,
    hashed,
    rounded_up,
    to_ballots,
    to_int2,
    to_int4,
    to_int8,
    to_log4,
)
from sparse_mpi.kernels.parts import add_parts, from_parts, select_parts, top_k_rows

FIELDS = MESSAGE.names or ()
NUMBER_LIMITS, NUMBER_BYTES = np.array([1 << 8, 1 << 16, 1 << 32]), np.array([1, 2, 4, 8])  # see `count_bytes`


def count(x: Array, thresholds: np.ndarray, among: Array | None = None) -> np.ndarray:
    x = x if among is None else x[among]
    bits = magnitude_bits(widened(x) if x.itemsize == 2 else x)
    bins = thresholds.astype(bits.dtype).searchsorted(bits, side="right")
    counts = np.bincount(bins, minlength=len(thresholds) + 1)
    return counts[::-1].cumsum()[::-1][1:]


def histogram(x: Array, shift: int, prefix: int, width: int) -> Array:
    x = widened(x)
    bits = magnitude_bits(x)
    if prefix:
        bits = bits[(bits >> shift) == prefix]
    elif shift < 8 * x.itemsize - 1:
        bits = bits[bits < (1 << shift)]
    bins = (bits >> (shift - width)) & ((1 << width) - 1)
    return np.bincount(bins, minlength=1 << width)


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    x = widened(x) if x.itemsize == 2 else x
    positions = np.flatnonzero(magnitude_bits(x) >= threshold)
    return None if len(positions) > most else (positions.astype(index_dtype(len(x))), x[positions])


def accumulate(residual: Array, gradient: Array) -> None:
    residual += widened(gradient)


def accumulate_select(residual: Array, gradient: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    residual += widened(gradient) if gradient.itemsize == 2 else gradient
    return select(residual, threshold, most)


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    with np.errstate(over="ignore"):
        bits: Array = x.astype(np.float32).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits = rounded_up(bits) >> 16
    bits[nan] = 0x7FC0
    codes = bits.astype(np.uint16)
    if back is not None:
        back[...] = widened(codes)
    return codes


def to_float16(x: Array) -> Array:
    xp = namespace(x)
    codes = xp.clip(x, np.float32(-65504), np.float32(65504)).astype(np.float16).view(np.uint16)
    special = xp.where(xp.isnan(x), 0x7E00, (x.view(np.uint32) >> 16 & 0x8000) | 0x7C00)
    return xp.where(xp.isfinite(x), codes, special).astype(np.uint16).view(np.float16)


def moments(x: Array, threshold: int) -> Moments:
    x = widened(x)
    magnitudes = np.abs(x[magnitude_bits(x) >= threshold]).astype(np.float64)
    if len(magnitudes) == 0:
        return Moments(0, 0.0, 0.0, 0.0, 0, 0.0)
    positive = magnitudes[magnitudes != 0]
    return Moments(
        len(magnitudes),
        float(magnitudes.sum()),
        float(magnitudes.dot(magnitudes)),
        float(np.log(positive).sum()),
        len(positive),
        float(magnitudes.max()),
    )


def sketch(x: Array, seed: int) -> np.ndarray:
    # Works in chunks, so that signs and positions need little memory
    key, total = np.uint32(seed), np.zeros(SKETCH)
    for start in range(0, len(x), SKETCHED_ROWS * SKETCH):
        chunk = x[start : start + SKETCHED_ROWS * SKETCH]
        rows = np.zeros((-(-len(chunk) // SKETCH), SKETCH))
        rows.reshape(-1)[: len(chunk)] = chunk
        # Signs: the bits of hashes that 32 rows have in common.
        numbers = start // SKETCH + np.arange(len(rows))
        shared = (numbers // 32 * SKETCH)[:, None] + np.arange(SKETCH)
        bits = hashed(shared, key) >> (numbers % 32).astype(np.uint32)[:, None] & 1
        rows = np.where(bits == 1, -rows, rows)
        # Buckets: the positions in a row, rotated by a hash of its number.
        by = hashed(numbers, ~key) % SKETCH
        source = (np.arange(SKETCH) - by.astype(np.int64)[:, None]) % SKETCH
        total += np.take_along_axis(rows, source, axis=1).sum(axis=0)
    return total


def add(x: Array, indices: Array, values: Array) -> None:
    x[indices] += values


def add_in_order(x: Array, indices: Array, values: Array, low: int = 0, lengths: np.ndarray | None = None) -> None:
    np.add.at(x, indices - low, values)


def subtract(x: Array, indices: Array, values: Array) -> None:
    xp = namespace(x)
    x[indices] = xp.where(xp.isfinite(values), x[indices] - values, 0)


def subtract_dense(x: Array, values: Array) -> None:
    with np.errstate(invalid="ignore"):
        x -= values
    x[~np.isfinite(values)] = 0


def follow_squares(mean: Array, x: Array, weight: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        change = (x * x - mean) * mean.dtype.type(weight)
    mean += np.where(np.isfinite(x) & np.isfinite(mean), change, mean.dtype.type(0))


def standardized(x: Array, squares: Array) -> Array:
    return x / np.sqrt(squares.clip(LEAST_SQUARE, np.finfo(squares.dtype).max))


def select_standardized(
    x: Array, squares: Array, threshold: int, most: int, add: Array | None = None
) -> tuple[Array, Array] | None:
    if add is not None:
        accumulate(x, add)
    return select(standardized(x, squares), threshold, most)


def gather(x: Array, indices: Array) -> Array:
    return x[indices]


def clear(x: Array, indices: Array) -> None:
    x[indices] = 0


def mark(bits: Array, indices: Array) -> None:
    xp = namespace(bits)
    xp.bitwise_or.at(bits, indices >> 3, xp.left_shift(1, indices & 7).astype(np.uint8))


def merge(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array]:
    # Sort the pairs; stable, so that values of one index keep their order.
    order = indices.argsort(kind="stable")
    indices, values = indices[order], values[order]
    first = np.ones(len(indices), bool)
    first[1:] = indices[1:] != indices[:-1]
    # Begin each sum with its first value, and add the others in order.
    totals = values[first]
    if len(totals) < len(values):
        np.add.at(totals, (first.cumsum() - 1)[~first], values[~first])
    return indices[first], totals


def merge_loosely(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array, None]:
    return *merge(indices, values, size, low), None


def merge_runs(runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
    indices, values = map(np.concatenate, zip(*runs, strict=True))
    return merge(indices, values, size, low)


def add_rows(matrix: Array) -> Array:
    total: Array = matrix[0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for row in matrix[1:]:
            total += row
    return total


def truncate(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
    if len(values) <= k:
        return indices, values
    bits = magnitude_bits(values)
    kth = np.partition(bits, len(bits) - k)[len(bits) - k]
    keep = bits > kth
    ties = np.flatnonzero(bits == kth)
    keep[ties[: k - int(np.count_nonzero(keep))]] = True
    return indices[keep], values[keep]


def truncate_least(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array, Number]:
    kept = truncate(indices, values, k)
    return *kept, int(magnitude_bits(kept[1]).min()) if len(kept[1]) == k > 0 else 0


def compress(
    indices: Array, values: Array, chosen: Array | None, count: int | None = None, threshold: int = 0
) -> tuple[Array, Array]:
    mask = chosen_reaching(values, chosen, threshold)
    return indices[mask], values[mask]


def chosen_reaching(values: Array, chosen: Array | None, threshold: int) -> Array:
    if threshold <= 0 and chosen is not None:
        return chosen
    reaching = magnitude_bits(values) > threshold - 1
    return reaching if chosen is None else reaching & chosen


def split_counts(indices: Array, boundaries: np.ndarray) -> np.ndarray:
    ends = indices.searchsorted(boundaries.astype(indices.dtype))
    return ends[1:] - ends[:-1]


def to_pairs(indices: Array, values: Array, unit: np.dtype) -> Array:
    split = indices.itemsize // unit.itemsize
    pairs = np.empty((len(indices), split + values.itemsize // unit.itemsize), unit)
    pairs[:, :split] = np.ascontiguousarray(indices).view(unit).reshape(-1, split)
    pairs[:, split:] = np.ascontiguousarray(values).view(unit).reshape(-1, pairs.shape[1] - split)
    return pairs


def from_pairs(pairs: Array, index: np.dtype, value: np.dtype) -> tuple[Array, Array]:
    split = index.itemsize // pairs.itemsize
    return pairs[:, :split].copy().view(index).reshape(-1), pairs[:, split:].copy().view(value).reshape(-1)


def contains(indices: Array, sought: Array) -> Array:
    if len(indices) == 0:
        return np.zeros(len(sought), bool)
    return indices[np.minimum(indices.searchsorted(sought), len(indices) - 1)] == sought


def among(indices: Array, sought: Array, values: Array) -> Array:
    return np.where(contains(indices, sought), values, values.dtype.type(0))


def cast_votes(
    x: Array, indices: Array, values: Array, quotas: np.ndarray, own: int = 0, more: int = 0
) -> tuple[Array, Array]:
    ranks, width = len(quotas), -(-len(x) // len(quotas))
    with np.errstate(invalid="ignore"):
        deltas = values - x[indices]
        worth = np.sqrt(np.abs(deltas)) * np.sqrt(np.abs(values))
    indices = indices.astype(index_dtype(width * ranks), copy=False)
    rounds = indices // ranks
    owners = indices - rounds * ranks + first_of(rounds, ranks)
    owners -= ranks * (owners >= ranks)
    # Indices ascend, and so do the numbers of each owner.
    order = owners.astype(np.uint16).argsort(kind="stable")
    runs = np.split(order, np.bincount(owners, minlength=ranks).cumsum()[:-1])
    most = np.where((np.arange(ranks) == own) & (more > 0), more, quotas).tolist()
    kept = [truncate(run, worth[run], k)[0] if k else run[:0] for run, k in zip(runs, most, strict=True)]
    kept = [*kept[:own], kept[own][:0], *kept[own + 1 :], kept[own]] if more else kept
    chosen, counts = np.concatenate(kept), np.array([len(run) for run in kept[:ranks]], np.int64)
    return completed((owners * width + rounds)[chosen], deltas[chosen], counts, quotas, width)


def completed(numbers: Array, values: Array, counts: np.ndarray, quotas: np.ndarray, width: int) -> tuple[Array, Array]:
    """Return as many entries of each rank as its quota: where there are fewer, its first others, with value 0.

    ``numbers`` and ``values`` ``(m,)`` are ``counts`` ``(P,)`` of each rank, which ascend from a multiple of ``width``
    on; those behind them come last, unchanged.
    """
    lacking = quotas - counts
    if not lacking.any():
        return numbers, values
    there = counts.sum()
    parts = [numbers[:there]]
    for rank in np.flatnonzero(lacking).tolist():
        free, own = np.ones(quotas[rank], bool), parts[0] - rank * width
        free[own[(own >= 0) & (own < len(free))]] = False
        parts.append(rank * width + np.flatnonzero(free)[: lacking[rank]])
    every = np.concatenate(parts).astype(numbers.dtype)
    order = every.argsort(kind="stable")
    of_every = np.append(values[:there], np.zeros(lacking.sum(), values.dtype))[order]
    return np.append(every[order], numbers[there:]), np.append(of_every, values[there:])


def undeal(numbers: Array, size: int, ranks: int) -> Array:
    width = -(-size // ranks)
    owners = numbers // width
    rounds = numbers - owners * width
    places = owners - first_of(rounds, ranks)
    places += ranks * (places < 0)
    return (rounds * ranks + places).astype(index_dtype(size), copy=False)


def add_dealt(x: Array, numbers: Array, values: Array, size: int, ranks: int) -> None:
    add(x, undeal(numbers, size, ranks), values)


def count_bytes(widths: np.ndarray) -> np.ndarray:
    """Return the bytes, 1, 2, 4 or 8, of a number below each of ``widths``."""
    return NUMBER_BYTES[NUMBER_LIMITS.searchsorted(widths)]


def sizes(entries: Array, regions: Array, counted: bool, together: int, code: int, block: int) -> np.ndarray:
    none = np.zeros(len(entries), np.int64)
    numbers = count_bytes(regions[:, 1] - regions[:, 0]) if counted else none
    return np.stack([numbers, -(-entries // together) * code, -(-entries // block) if block else none])


def edges(messages: np.ndarray, block: int) -> np.ndarray:
    counts = messages["entries"]
    blocks = -(-counts // block)
    of_blocks = np.append(np.repeat(messages["first"], blocks), counts.sum())
    of_blocks[:-1] += block * (np.arange(blocks.sum()) - np.repeat(messages["block"], blocks))
    return of_blocks


def numbers(buffer: Array, lengths: np.ndarray, regions: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, int]:
    widths, there = regions[:, 1] - regions[:, 0], lengths > 0
    of_number = count_bytes(widths) * there
    digits = (np.arange(8) < of_number[:, None]) & (of_number <= lengths)[:, None]
    found = np.zeros((len(lengths), 8), np.uint8)
    found[digits] = buffer[(starts[:, None] + np.arange(8))[digits]]
    entries: np.ndarray = found.view("<i8")[:, 0] + there
    bad = (of_number > lengths) | (entries < 0) | (entries > widths)
    return entries, int(bad.argmax()) if bad.any() else -1


def sections(
    entries: Array, regions: Array, numbers: Array, codes: Array, blocks: Array, tail: int, scale_bytes: int, to: Array
) -> None:
    """Write each message's record ``to`` an array ``(m, fields)``; Numba compiles it if present."""
    first = block = code = at = 0
    for m in range(len(entries)):
        count, start = entries[m], regions[m, 0]
        width = regions[m, 1] - start
        number = end = shift = spread = span = 0
        if count > 0:
            number, end = numbers[m], tail
        # The shorter one of the two forms of the indices, see `wire.packed`.
        if 0 < count < width:
            shift = max(frexp(np.float64(width // count))[1] - 1, 0)
            span, spread = count + ((width - 1) >> shift), 1
            if (width + 7) >> 3 < ((shift * count + 7) >> 3) + ((span + 7) >> 3):
                shift, span, spread = 0, width, 0
        for field, value in enumerate((count, first, start, shift, spread, span, block, code, scale_bytes)):
            to[m, field] = value
        # Sections follow one another without gaps, also from one message to the next.
        lengths = (number, codes[m], scale_bytes * blocks[m], (shift * count + 7) >> 3, ((span + 7) >> 3) + end)
        for section, length in enumerate(lengths):
            to[m, 9 + section] = at
            at += length
        to[m, 14] = at
        first += count
        block += blocks[m]
        code += codes[m]


_sections = np.errstate(over="ignore")(sections)  # the stop of a region may have wrapped around


def lay_out(
    entries: np.ndarray,
    regions: np.ndarray,
    numbers: np.ndarray,
    codes: np.ndarray,
    blocks: np.ndarray,
    tail: int = 0,
    scale_bytes: int = 4,
    write: Callable[..., None] = _sections,
) -> np.ndarray:
    words = np.empty((len(entries), len(FIELDS)), np.int64)
    write(entries, regions, numbers, codes, blocks, tail, scale_bytes, words)
    return words.view(MESSAGE).reshape(-1)


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    buffer = np.zeros(int(messages["end"][-1]), np.uint8)
    codes, scales = codes.view(np.uint8), scales.view(np.uint8).reshape(-1, 4)
    for message in messages.tolist():
        one = SimpleNamespace(**dict(zip(FIELDS, message, strict=True)))
        offsets = indices[one.first : one.first + one.entries].astype(np.int64) - one.start
        if one.entries:
            buffer[one.head : one.values] = np.array([one.entries - 1], "<i8").view(np.uint8)[: one.values - one.head]
        buffer[one.values : one.scales] = codes[one.code : one.code + one.scales - one.values]
        blocks = slice(one.block, one.block + (one.lows - one.scales) // one.scale_bytes)
        buffer[one.scales : one.lows] = scales[blocks, 4 - one.scale_bytes :].ravel()
        # Low bits stand side by side; a high part is one bit, with Elias-Fano shifted on by the entry's number.
        buffer[one.lows : one.highs] = np.packbits(offsets[:, None] >> np.arange(one.shift) & 1, bitorder="little")
        flags = np.zeros(one.span, bool)
        if one.span:
            flags[(offsets >> one.shift) + one.spread * np.arange(one.entries)] = True
        buffer[one.highs : one.highs + (one.span + 7 >> 3)] = np.packbits(flags, bitorder="little")
    return buffer


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    indices = np.empty(messages["entries"].sum(), index_dtype(size))
    codes = np.empty((messages["scales"] - messages["values"]).sum(), np.uint8)
    scales = np.zeros((((messages["lows"] - messages["scales"]) // messages["scale_bytes"]).sum(), 4), np.uint8)
    for number, message in enumerate(messages.tolist()):
        one = SimpleNamespace(**dict(zip(FIELDS, message, strict=True)))
        count, shift = one.entries, one.shift
        codes[one.code : one.code + one.scales - one.values] = buffer[one.values : one.scales]
        factor = buffer[one.scales : one.lows].reshape(-1, one.scale_bytes)
        scales[one.block : one.block + len(factor), 4 - one.scale_bytes :] = factor
        offsets = np.arange(count)
        if one.span:  # the i-th set bit is that of the i-th entry, and its position gives the high part back
            places = np.flatnonzero(np.unpackbits(buffer[one.highs : one.end], count=one.span, bitorder="little"))
            if len(places) != count:
                raise MalformedMessage(number, len(messages), MISCOUNTED)
            offsets = (places - one.spread * offsets) << shift
        bits = np.unpackbits(buffer[one.lows : one.highs], count=count * shift, bitorder="little").reshape(count, shift)
        indices[one.first : one.first + count] = offsets + bits @ (1 << np.arange(shift)) + one.start
    return indices, codes, scales.ravel().view(np.float32)


def misplaced(indices: Array, counts: np.ndarray, regions: np.ndarray, beyond: int) -> int:
    low, high = regions[:, 0].min(), regions[:, 1].max() - beyond
    ends = counts.cumsum()
    rises = np.empty(len(indices), bool)
    rises[1:] = indices[1:] > indices[:-1]
    there = np.flatnonzero(counts)
    rises[(ends - counts)[there]] = indices[(ends - counts)[there]] >= low
    rises[ends[there] - 1] &= indices[ends[there] - 1] <= high
    return -1 if rises.all() else int(ends.searchsorted(rises.argmin(), side="right"))
