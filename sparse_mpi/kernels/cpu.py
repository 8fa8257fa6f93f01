"""Kernels for host memory, compiled by Numba: one pass each, the GIL released, large vectors on several threads.

Inner loops run over slices (``part = bits[lo:hi]``), which Numba vectorises, not over computed bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numba
import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels import threads
from sparse_mpi.kernels.array import add, merge, moments, top_k_rows
from sparse_mpi.kernels.base import index_dtype
from sparse_mpi.kernels.lanes import LANES, lowest, reached

__all__ = [
    "accumulate_select",
    "add",
    "histogram",
    "merge",
    "moments",
    "select",
    "subtract",
    "top_k_rows",
]

EXPECTED = 2  # of 64 entries: more is rare at the densities of interest
TILE = 2048  # entries accumulated before they are looked through: residual and gradient stay in the first-level cache
ONE = np.uint64(1)

_compile = numba.njit(nogil=True, cache=True, boundscheck=False)


def _bits(x: Array) -> np.ndarray:
    """The bit patterns of ``x``, sign included, without a copy."""
    return x.view(np.dtype(f"int{8 * x.itemsize}"))


def histogram(x: Array, shift: int, prefix: int, width: int) -> np.ndarray:
    """See `base.Kernels.histogram`."""
    bits = _bits(x)
    kind = bits.dtype.type
    magnitude = np.iinfo(bits.dtype).max
    mask = kind((1 << width) - 1)

    def count(lo: int, hi: int) -> np.ndarray:
        counts = np.zeros(1 << width, np.int64)
        if shift == 8 * x.itemsize - 1:
            _histogram_all(bits[lo:hi], kind(magnitude), kind(shift - width), counts)
        else:
            _histogram(bits[lo:hi], kind(magnitude), kind(shift), kind(prefix), kind(shift - width), mask, counts)
        return counts

    first, *others = threads.each(count, threads.parts(x.size))
    for counts in others:
        first += counts
    return first


@_compile
def _histogram_all(bits, magnitude, low, counts):
    for i in range(bits.size):
        counts[(bits[i] & magnitude) >> low] += 1


@_compile
def _histogram(bits, magnitude, shift, prefix, low, mask, counts):
    for i in range(bits.size):
        b = bits[i] & magnitude
        if b >> shift == prefix:
            counts[(b >> low) & mask] += 1


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.select`."""
    x = np.ascontiguousarray(x)
    bits = _bits(x)
    limit = bits.dtype.type(threshold)

    def scan(lo: int, hi: int, indices: np.ndarray, values: np.ndarray) -> int:
        return _select(x[lo:hi], bits[lo:hi], limit, most, lo, indices, values)

    return _compacted(scan, x, most)


def accumulate_select(residual: Array, gradient: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    """See `base.Kernels.accumulate_select`."""
    if not residual.flags.c_contiguous:
        residual += gradient
        return select(residual, threshold, most)
    gradient = np.ascontiguousarray(gradient, residual.dtype)
    bits = _bits(residual)
    limit = bits.dtype.type(threshold)

    def scan(lo: int, hi: int, indices: np.ndarray, values: np.ndarray) -> int:
        acc = residual[lo:hi]
        return _accumulate_select(acc, gradient[lo:hi], bits[lo:hi], limit, most, lo, indices, values)

    return _compacted(scan, residual, most)


def _compacted(
    scan: Callable[[int, int, np.ndarray, np.ndarray], int], x: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """What ``scan(lo, hi, indices, values) -> count`` writes for each thread's part of ``x``, moved together.

    Every part has room for all it may find, and memory that is never written costs nothing.
    """
    pieces = threads.parts(x.size)
    room = {lo: min(most, hi - lo) + LANES for lo, hi in pieces}
    starts = dict(zip(room, itertools.accumulate(room.values(), initial=0), strict=False))
    values, indices = _columns(sum(room.values()), x.dtype, index_dtype(x.size))

    def work(lo: int, hi: int) -> int:
        own = slice(starts[lo], starts[lo] + room[lo])
        return scan(lo, hi, indices[own], values[own])

    counts = threads.each(work, pieces)
    if sum(counts) > most:
        return None
    total = counts[0]
    for (lo, _), count in zip(pieces[1:], counts[1:], strict=True):
        for column in (indices, values):
            column[total : total + count] = column[starts[lo] : starts[lo] + count]
        total += count
    return indices[:total], values[:total]


def _columns(size: int, *dtypes: np.dtype) -> list[np.ndarray]:
    """Unwritten arrays in one piece of memory, widest dtype first: malloc keeps one such piece from call to call, but
    gives two back to the system, and to fault their pages in again takes as long as a third of a selection."""
    cuts = list(itertools.accumulate((size * dtype.itemsize for dtype in dtypes), initial=0))
    memory = np.empty(cuts[-1], np.uint8)
    return [memory[lo:hi].view(dtype) for lo, hi, dtype in zip(cuts[:-1], cuts[1:], dtypes, strict=True)]


@_compile
def _select(x, bits, threshold, most, offset, indices, values):
    """Writes up to 64 pairs past ``most`` before it gives up."""
    count = 0
    whole = x.size - x.size % LANES
    for lo in range(0, whole, LANES):
        mask = reached(bits, lo, threshold)
        for _ in range(EXPECTED):  # without a branch: no misprediction as long as no more than these are found
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
        if count > most:
            return count
    magnitude = np.iinfo(bits.dtype).max
    for at in range(whole, x.size):
        if (bits[at] & magnitude) >= threshold:
            indices[count] = offset + at
            values[count] = x[at]
            count += 1
    return count


@_compile
def _accumulate_select(residual, gradient, bits, threshold, most, offset, indices, values):
    count = 0
    for lo in range(0, residual.size, TILE):
        acc, part = residual[lo : lo + TILE], gradient[lo : lo + TILE]
        for i in range(acc.size):
            acc[i] += part[i]
        if count <= most:
            found, places = indices[count:], values[count:]
            count += _select(acc, bits[lo : lo + TILE], threshold, most - count, offset + lo, found, places)
    return count


def subtract(x: Array, indices: Array, values: Array) -> None:
    """See `base.Kernels.subtract`."""
    _subtract(x, indices, values)


@_compile
def _subtract(x, indices, values):
    for i in range(indices.size):
        at = indices[i]
        x[at] = x[at] - values[i] if np.isfinite(values[i]) else 0
