"""Shared parts of compiled kernels: bit patterns, and half precision widened a tile at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numba import types
from numba.extending import overload

from sparse_mpi.arrays import Array, bits_type, index_dtype, wide_type
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.base import SKETCH, SKETCHED_ROWS
from sparse_mpi.kernels.cpu.first_use import compiled
from sparse_mpi.kernels.cpu.lanes import LANES, added, lowest, prefetch_lanes, reached

Found = tuple[Array, Array]
# A scan of ``[lo, hi)`` for entries that reach a threshold: of lo, hi, room, most, indices, values. It writes at most
# ``room`` pairs and `TILE` more. If there are more entries, it goes on counting, until they are more than ``most``.
Scan: TypeAlias = Callable[[int, int, int, int, Array, Array], int]
TILE = 2048  # entries worked on at once, and fetched ahead: two tiles stay in the first-level cache
EXPECTED = 2  # number of marks among 64 entries: more is rare at the densities of interest
ONE = np.uint64(1)
CHUNK = SKETCHED_ROWS * SKETCH  # entries added up by themselves, so that the number of threads changes no bit


@compiled
def mixed(x):
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


def readable(x: Array) -> np.ndarray:
    """Return ``x`` contiguous and of a type for compiled code: float16 as int16; bfloat16 is uint16 already."""
    x = np.ascontiguousarray(x)
    return x.view(np.int16) if x.dtype == np.float16 else x


def scratch_for(x: Array) -> np.ndarray:
    return np.empty(TILE if x.itemsize == 2 else 0, np.int32)


def bits_of(part):
    return part.view(np.dtype(f"int{8 * part.itemsize}"))


@overload(bits_of, inline="always")
def _bits_of(part):
    if part.dtype == types.float64:
        return lambda part: part.view(np.int64)
    return lambda part: part.view(np.int32)


def widened(part, scratch):
    """Return ``part`` as float32 or float64: itself, or half precision widened to float32 in ``scratch``."""
    raise NotImplementedError("for compiled code only")


@overload(widened, inline="always")
def _widened(part, scratch):
    if part.dtype == types.uint16:
        return lambda part, scratch: _widened_bfloat16(part, scratch)
    if part.dtype == types.int16:
        return lambda part, scratch: _widened_float16(part, scratch)
    return lambda part, scratch: part


@compiled
def _widened_bfloat16(part, scratch):
    for i in range(part.size):
        scratch[i] = np.int32(part[i]) << 16
    return scratch[: part.size].view(np.float32)


@compiled
def _widened_float16(part, scratch):
    """Widen by moving exponent and mantissa into place; a multiplication, right for denormals, rebiases."""
    magnitudes = scratch[: part.size].view(np.float32)
    for i in range(part.size):
        scratch[i] = (np.int32(part[i]) & 0x7FFF) << 13
    for i in range(part.size):
        magnitudes[i] *= np.float32(2.0**112)
    for i in range(part.size):
        bits = np.int32(part[i])
        special = 0x7F800000 if (bits & 0x7C00) == 0x7C00 else 0
        scratch[i] |= special | ((bits & 0x8000) << 16)
    return magnitudes


def select(x: Array, threshold: int, most: int) -> Found | None:
    source = readable(x)
    limit = bits_type(x).type(threshold)

    def scan(lo: int, hi: int, room: int, most: int, indices: Array, values: Array) -> int:
        return _select(source[lo:hi], scratch_for(source), limit, room, most, lo, indices, values)

    return compacted(scan, scan, x, most)


def accumulate(residual: Array, gradient: Array) -> None:
    if gradient.dtype.itemsize == 2:
        accumulate_select(residual, gradient, np.iinfo(bits_type(residual)).max, 0)
    else:
        residual += gradient


def accumulate_select(residual: Array, gradient: Array, threshold: int, most: int) -> Found | None:
    if not residual.flags.c_contiguous:
        raise ValueError("residual must be contiguous, to be accumulated in place; pass a contiguous copy")
    gradient = readable(gradient)
    limit = bits_type(residual).type(threshold)

    def accumulated(lo: int, hi: int, room: int, most: int, indices: Array, values: Array) -> int:
        acc, part = residual[lo:hi], gradient[lo:hi]
        return _accumulate_select(acc, part, scratch_for(gradient), limit, room, most, lo, indices, values)

    def scan(lo: int, hi: int, room: int, most: int, indices: Array, values: Array) -> int:
        return _select(residual[lo:hi], scratch_for(residual), limit, room, most, lo, indices, values)

    return compacted(accumulated, scan, residual, most)


def compacted(first: Scan, again: Scan, x: Array, most: int) -> Found | None:
    """Scan a part of ``x`` on each thread, and join the results.

    Each part has room for a quarter more than its share of ``most``. If one overflows, but all have at most ``most``
    entries, a second scan, ``again``, follows with room for the first one's counts.
    """
    most = min(most, x.size)
    if x.size < threads.MIN_ENTRIES_PER_THREAD:
        values, indices = _columns(most + TILE, wide_type(x), index_dtype(x.size))
        count = first(0, x.size, most, most, indices, values)
        return None if count > most else (indices[:count], values[:count])
    pieces = threads.parts(x.size)
    room = most if len(pieces) == 1 else min(most, -(-5 * most // (4 * len(pieces))))
    found, counts = _scanned(first, pieces, [room] * len(pieces), most, x)
    if sum(counts) > most:
        return None
    if max(counts) > room:
        del found
        found, counts = _scanned(again, pieces, counts, most, x)
    total = sum(counts)
    return found[0][:total], found[1][:total]


def _scanned(
    scan: Scan, pieces: list[tuple[int, int]], rooms: list[int], most: int, x: Array
) -> tuple[Found, list[int]]:
    # Let each thread write into a part of the result that is its own.
    starts = dict(zip(pieces, itertools.accumulate((room + TILE for room in rooms), initial=0), strict=False))
    sizes = dict(zip(pieces, rooms, strict=True))
    values, indices = _columns(sum(rooms) + TILE * len(rooms), wide_type(x), index_dtype(x.size))

    def work(lo: int, hi: int) -> int:
        start, room = starts[lo, hi], sizes[lo, hi]
        own = slice(start, start + room + TILE)
        return scan(lo, hi, room, most, indices[own], values[own])

    counts = threads.each(work, pieces)
    # Close the gaps between these parts.
    total = 0
    for piece, room, count in zip(pieces, rooms, counts, strict=True):
        if count > room:
            break
        for column in (indices, values):
            column[total : total + count] = column[starts[piece] : starts[piece] + count]
        total += count
    return (indices, values), counts


def _columns(size: int, wider: np.dtype, other: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return uninitialised arrays that share memory.

    malloc reuses one large piece from call to call but returns two to the system.
    """
    cut = size * wider.itemsize
    memory = np.empty(cut + size * other.itemsize, np.uint8)
    return memory[:cut].view(wider), memory[cut:].view(other)


@compiled
def _select(x, scratch, threshold, room, most, offset, indices, values):
    count = np.int64(0)  # not a literal, for which `append` would be compiled once more
    for lo in range(0, x.size, TILE):
        source = x[lo : lo + TILE]
        part = widened(source, scratch)
        if count <= room:
            count = append(part, source, threshold, offset + lo, count, indices, values)
        elif count <= most:
            count += counted(bits_of(part), threshold)
        else:
            break
    return count


@compiled
def _accumulate_select(residual, gradient, scratch, threshold, room, most, offset, indices, values):
    """Add all of ``gradient`` and scan in one pass, tile by tile; see `Scan`.

    Memory is prefetched a tile ahead: with so many branches the processor fetches too little.
    """
    count = np.int64(0)
    for lo in range(0, residual.size, TILE):
        acc, part = residual[lo : lo + TILE], gradient[lo : lo + TILE]
        more = widened(part, scratch)
        if count > room:
            for at in range(acc.size):
                acc[at] += more[at]
            if count <= most:
                count += counted(bits_of(acc), threshold)
            continue
        whole = acc.size - acc.size % LANES
        for at in range(0, whole, LANES):
            prefetch_lanes(acc, at + TILE)
            prefetch_lanes(part, at + TILE)
            count = append_marked(acc, at, added(acc, at, threshold, more), offset + lo, count, indices, values)
        for at in range(whole, acc.size):
            acc[at] += more[at]
        count = append_rest(acc, whole, threshold, offset + lo, count, indices, values)
    return count


@compiled
def append(x, source, threshold, offset, count, indices, values):
    """Append the entries of ``x`` that reach the threshold; prefetch the tile after its ``source``."""
    whole = x.size - x.size % LANES
    for lo in range(0, whole, LANES):
        prefetch_lanes(source, lo + TILE)
        count = append_marked(x, lo, reached(x, lo, threshold), offset, count, indices, values)
    return append_rest(x, whole, threshold, offset, count, indices, values)


@compiled
def append_marked(x, lo, mask, offset, count, indices, values):
    """Append the entries of ``x`` from ``lo`` on with bits set in ``mask``, of 64.

    Usually at most `EXPECTED` are set; that many pairs are written as in `pairs.keep_largest`.
    """
    for _ in range(EXPECTED):
        at = lo + (lowest(mask) & (LANES - 1))
        indices[count] = offset + at
        values[count] = x[at]
        count += mask != 0
        mask &= mask - ONE
    while mask != 0:
        at = lo + lowest(mask)
        indices[count] = offset + at
        values[count] = x[at]
        count += 1
        mask &= mask - ONE
    return count


@compiled
def append_rest(x, whole, threshold, offset, count, indices, values):
    bits = bits_of(x)
    magnitude = np.iinfo(bits.dtype).max
    for at in range(whole, x.size):
        if (bits[at] & magnitude) >= threshold:
            indices[count] = offset + at
            values[count] = x[at]
            count += 1
    return count


@compiled
def counted(bits, threshold):
    magnitude, count = np.iinfo(bits.dtype).max, 0
    for i in range(bits.size):
        count += (bits[i] & magnitude) >= threshold
    return count


def sketch(x: Array, seed: int) -> np.ndarray:
    x = np.ascontiguousarray(x)
    partial = np.zeros((-(-x.size // CHUNK), SKETCH))
    threads.each(
        lambda lo, hi: _sketch(x[lo:hi], np.int64(lo), np.uint32(seed), partial[lo // CHUNK : -(-hi // CHUNK)]),
        threads.parts(x.size, CHUNK),
    )
    return partial.sum(axis=0)


@compiled
def _sketch(x, first, seed, partial):
    """Add the signed entries of each chunk to a row of ``partial``; ``first`` is the index of ``x[0]``.

    A row of `SKETCH` entries is rotated by a hash of its number; signs are the bits of hashes common to 32 rows.
    """
    hashes = np.empty(SKETCH, np.uint32)
    for lo in range(0, x.size, SKETCH):
        row, number = x[lo : lo + SKETCH], (first + lo) // SKETCH
        bit = np.uint32(number % 32)
        if bit == 0:
            start = np.uint32(number // 32 * SKETCH)
            for i in range(SKETCH):
                hashes[i] = mixed(mixed(start + np.uint32(i)) ^ seed)
        by = np.int64(mixed(mixed(np.uint32(number)) ^ ~seed) % np.uint32(SKETCH))
        sums, room = partial[lo // CHUNK], SKETCH - by
        _add_signed(sums[by:], row[:room], hashes[:room], bit)
        _add_signed(sums[:by], row[room:], hashes[room:], bit)


@compiled
def _add_signed(sums, entries, hashes, bit):
    for i in range(entries.size):
        sums[i] += entries[i] * np.float32(1 - 2 * np.int32((hashes[i] >> bit) & np.uint32(1)))
