"""Kernels made of whole-array functions, for NumPy without Numba and for CuPy: several passes, but no compiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse_mpi.arrays import Array, namespace, to_host, widened
from sparse_mpi.kernels.base import SKETCH, SKETCHED_ROWS, Moments, index_dtype, magnitude_bits
from sparse_mpi.kernels.bits import lay_out, misplaced, read_messages, write_messages
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
