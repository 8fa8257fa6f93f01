"""Kernels for CuPy arrays, compiled by NVRTC: one pass each, all on the current stream.

The host waits for the device once in `select`, for the number of entries, in `compress` if that is unknown, in `count`,
`moments` and `sketch` for results, and in `merge` for the number of distinct indices, which `merge_loosely` may avoid.
`split_counts`, `truncate_least`, `top_k` and `largest` wait when numbers are read; all others have results of known
lengths, and do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from sparse_mpi.arrays import Array, constant, index_dtype, wide_type, widened
from sparse_mpi.kernels import array
from sparse_mpi.kernels.array import clear, gather, mark, to_float16
from sparse_mpi.kernels.base import LONG, SKETCH, SKETCHED_ROWS, Later, Moments, Number
from sparse_mpi.kernels.cuda.cleared import cleared
from sparse_mpi.kernels.cuda.compilation import DIGIT, SELECTING, THREADS, blocks_for, kernel, launch, start
from sparse_mpi.kernels.cuda.launches import (
    accumulate,
    adam,
    add_dealt,
    cast_votes,
    follow_squares,
    from_ballots,
    from_int8,
    from_levels,
    from_log4,
    from_pairs,
    read_int8,
    read_messages,
    split_counts,
    standardized,
    subtract_dense,
    to_ballots,
    to_bfloat16,
    to_int2,
    to_int4,
    to_int8,
    to_log4,
    to_pairs,
    undeal,
    write_int8,
    write_messages,
)
from sparse_mpi.kernels.cuda.part_launches import add_parts, from_parts, select_parts
from sparse_mpi.kernels.cuda.told import Told, pointer

ROUNDS = 8  # vectors that each thread of a selection reads
TILE_BYTES = 256 * ROUNDS * 16  # bytes that each block of a selection reads; half of them in half precision
MAX_BLOCKS = 2048  # most blocks whose partial sums are added up, by the host or by atomics
SHARES, PAIRS = 128, 4096  # blocks of `truncate` at most, one a multiprocessor; the fewest pairs that each is worth
MOST_RUNS = 64  # most runs among which `add_up_runs` searches
# Runs up to which that is cheaper than a sort, however long they are; and pairs times runs, however many runs there are
FEW_RUNS, FEW_SEARCHES = 16, 1 << 24


def count(x: Array, thresholds: np.ndarray, among: Array | None = None) -> np.ndarray:
    x, number = cupy.ascontiguousarray(x), len(thresholds)
    if x.size == 0 or number == 0:
        return np.zeros(number, np.int64)
    told = Told(number, thresholds)
    blocks = min(MAX_BLOCKS, blocks_for(x.size, 16 * THREADS))
    given = x, x.size, _or_none(among), cleared(number + 1), number, told.pointer
    start(kernel("count", "count.cu", REAL=x.dtype), blocks, *given)
    return told.written().numbers().copy()


def select(x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
    x = cupy.ascontiguousarray(x)
    indices, values, counted, _ = _passing(x, (x,), threshold, most)
    found = counted.number()
    return None if found > most else (indices[:found], values[:found])


def top_k(x: Array, k: int) -> tuple[Array, Array, Number]:
    return truncate_least(None, widened(x), k)


def largest(
    x: Array, k: int, threshold: int, most: int, add: Array | None = None, squares: Array | None = None
) -> tuple[Array, Array, Number, Number]:
    x, found, types = cupy.ascontiguousarray(widened(x)), Told(1), dict[str, Any]()
    given = [x] if add is None else [x, cupy.ascontiguousarray(add)]
    if add is not None:
        types["GRADIENT"] = add.dtype
    if squares is not None:
        given[:0] = cupy.ascontiguousarray(squares), np.finfo(x.dtype).max
        types["SQUARES"] = 1
    indices, values, counted, passed = _passing(x, given, threshold, most, **types)
    kept = _kept(indices, values, k, found, passed, x, squares)
    return *kept, Later(found.written().number, found.known), Later(counted.number)


def _passing(
    x: Array, read: Sequence[Any], threshold: int, most: int, **macros: Any
) -> tuple[Array, Array, Told, Array]:
    """Return pairs, of which so many are valid as both numbers behind them tell: to the host, and to kernels."""
    room = min(most, x.size)
    indices, values = cupy.empty(room, index_dtype(x.size)), cupy.empty(room, wide_type(x))
    tiles, counted = blocks_for(x.size * values.itemsize, TILE_BYTES), Told(1)
    state, counted.numbers()[0] = cleared(1 + tiles), 0
    if tiles:
        compact = kernel("compact", "select.cu", REAL=x.dtype, INDEX=indices.dtype, ROUNDS=ROUNDS, **macros)
        start(compact, tiles, *read, x.size, threshold, most, indices, values, state, counted.pointer)
    return indices, values, counted.written(), state[tiles:]


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    matrix = cupy.ascontiguousarray(matrix)
    rows, columns = matrix.shape
    chosen, values = cupy.empty((rows, k), np.int32), cupy.empty((rows, k), matrix.dtype)
    types: dict[str, Any] = {"REAL": matrix.dtype, "INDEX": chosen.dtype, "DIGIT": DIGIT}
    types["threads"] = SELECTING if columns >= LONG else THREADS
    launch("top_k", "largest.cu", rows, matrix, columns, k, chosen, values, blocks=rows, **types)
    return chosen, values


def select_rows(x: Array, tables: tuple[np.ndarray, np.ndarray], entries: int) -> tuple[Array, Array]:
    # It takes two launches at most, whatever the number of tensors
    x = cupy.ascontiguousarray(x)
    indices, values = cupy.empty(entries, index_dtype(x.size)), cupy.empty(entries, x.dtype)
    of_types: dict[str, Any] = {"REAL": x.dtype, "INDEX": indices.dtype, "DIGIT": DIGIT}
    for rows, threads in zip(tables, (THREADS, SELECTING), strict=True):
        if len(rows):
            given, blocks = (x, constant(rows, x), indices, values), len(rows)
            launch("select_rows", "largest.cu", blocks, *given, blocks=blocks, threads=threads, **of_types)
    return indices, values


def moments(x: Array, threshold: int) -> Moments:
    # Results have the same bits on every call and on any device
    x = cupy.ascontiguousarray(x)
    if x.size == 0:
        return Moments(0, 0.0, 0.0, 0.0, 0, 0.0)
    blocks = min(MAX_BLOCKS, blocks_for(x.size))
    partial = cupy.empty((6, blocks), np.float64)
    start(kernel("moments", "moments.cu", REAL=x.dtype), blocks, x, x.size, threshold, partial)
    of_blocks = partial.get()
    entries, total, squares, logs, nonzero = (float(sums.sum()) for sums in of_blocks[:5])
    return Moments(int(entries), total, squares, logs, int(nonzero), float(of_blocks[5].max()))


def sketch(x: Array, seed: int) -> np.ndarray:
    # The host adds up the sums of all chunks
    x = cupy.ascontiguousarray(x)
    chunks = blocks_for(x.size, SKETCHED_ROWS * SKETCH)
    if chunks == 0:
        return np.zeros(SKETCH)
    partial = cupy.empty((chunks, SKETCH), np.float64)
    add_up = kernel("sketch", "sketch.cu", SKETCH, REAL=x.dtype, ROWS=SKETCHED_ROWS)
    start(add_up, chunks, x, x.size, seed, partial, threads=SKETCH)
    return partial.get().sum(axis=0)


def add(x: Array, indices: Array, values: Array) -> None:
    _scatter("add", x, indices, values)


def add_in_order(x: Array, indices: Array, values: Array, low: int = 0, lengths: np.ndarray | None = None) -> None:
    given = cupy.ascontiguousarray(indices), cupy.ascontiguousarray(values)
    pairs, types = indices.size, dict[str, Any](REAL=values.dtype, INDEX=indices.dtype)
    if lengths is None or not _worth_searching(pairs, len(lengths)):
        order = cupy.argsort(given[0], kind="stable")
        launch("add_in_order", "sparse.cu", pairs, *given, order, pairs, low, x, **types)
    elif pairs:
        starts = _starts(lengths)
        launch("add_runs_in_order", "sparse.cu", pairs, *given, pairs, starts.pointer, len(lengths), low, x, **types)
        starts.written()


def _starts(lengths: np.ndarray) -> Told:
    return Told(0, np.append(0, np.cumsum(lengths)))


def subtract(x: Array, indices: Array, values: Array) -> None:
    _scatter("subtract", x, indices, values)


def _scatter(name: str, x: Array, indices: Array, values: Array) -> None:
    """Run ``name`` of sparse.cu, or whole-array functions for other layouts and types."""
    if not x.flags.c_contiguous or x.dtype != values.dtype:
        getattr(array, name)(x, indices, values)
    else:
        given = x, cupy.ascontiguousarray(indices), cupy.ascontiguousarray(values), indices.size
        launch(name, "sparse.cu", indices.size, *given, REAL=x.dtype, INDEX=indices.dtype)


def merge(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array]:
    indices, values, first = merge_loosely(indices, values, size, low, lengths)
    return (indices, values) if first is None else compress(indices, values, first)


def merge_loosely(
    indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
) -> tuple[Array, Array, Array | None]:
    indices, values = cupy.ascontiguousarray(indices), cupy.ascontiguousarray(values)
    if lengths is None or not _worth_searching(indices.size, len(lengths)):
        return *_sorted_and_merged(indices, values), None
    starts, pairs = _starts(lengths), indices.size
    made = cupy.empty(pairs, indices.dtype), cupy.empty(pairs, values.dtype), cupy.empty(pairs, bool)
    add_up = kernel("add_up_runs", "sparse.cu", SELECTING, REAL=values.dtype, INDEX=indices.dtype)
    given = indices, values, pairs, starts.pointer, len(lengths), *made
    if pairs:
        start(add_up, blocks_for(pairs, SELECTING), *given, threads=SELECTING)
        starts.written()
    return made


def _worth_searching(pairs: int, runs: int) -> bool:
    return runs <= MOST_RUNS and (runs <= FEW_RUNS or pairs * runs <= FEW_SEARCHES)


def _sorted_and_merged(indices: Array, values: Array) -> tuple[Array, Array]:
    # Sort the pairs; stable, so that values of one index keep their order.
    pairs, order = indices.size, cupy.argsort(indices, kind="stable")
    if not pairs:
        return indices, values
    of_types: dict[str, Any] = {"REAL": values.dtype, "INDEX": indices.dtype}
    told, heads = Told(1), cupy.empty(pairs, np.int64)
    state = cleared(1 + blocks_for(pairs))
    launch("heads", "sparse.cu", pairs, indices, order, pairs, heads, state, told.pointer, **of_types)
    # Let one thread add up each run of equal indices, in order.
    runs = told.written().number()
    distinct, totals = cupy.empty(runs, indices.dtype), cupy.empty(runs, values.dtype)
    arguments = (indices, values, order, heads, runs, pairs, distinct, totals)
    launch("add_runs", "sparse.cu", runs, *arguments, **of_types)
    return distinct, totals


def merge_runs(runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
    indices, values = map(cupy.concatenate, zip(*runs, strict=True))
    return merge(indices, values, size, low, np.array([part.size for part, _ in runs]))


def add_rows(matrix: Array) -> Array:
    rows, columns = matrix.shape
    total = cupy.empty(columns, matrix.dtype)
    launch("add_rows", "dense.cu", columns, matrix, rows, columns, total, REAL=matrix.dtype)
    return total


def truncate(indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
    return (indices, values) if values.size <= k else _kept(indices, values, k, None)


def truncate_least(indices: Array | None, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array, Number]:
    if indices is not None and values.size < max(k, 1):
        return indices, values, 0
    found = Told(1)
    kept = _kept(indices, values, k, found)
    return *kept, Later(found.written().number)


def _kept(
    indices: Array | None,
    values: Array,
    k: int,
    least: Told | None,
    passed: Array | None = None,
    x: Array | None = None,
    squares: Array | None = None,
) -> tuple[Array, Array]:
    values, size = cupy.ascontiguousarray(values), values.size if x is None else x.size
    index = index_dtype(size) if indices is None else indices.dtype
    kept, largest = cupy.empty(k, index), cupy.empty(k, values.dtype)
    shares, passes = min(SHARES, blocks_for(size, PAIRS)), blocks_for(8 * values.itemsize - 1, DIGIT)
    state = cleared(2 + passes + 3 * shares + passes * (1 << DIGIT) // 2)
    keep = kernel("keep_largest", "largest.cu", SELECTING, DIGIT=DIGIT, REAL=values.dtype, INDEX=index)
    given = _or_none(indices), values, values.size, PAIRS, int(k)
    beside = _or_none(passed), _or_none(x), size, _or_none(squares), np.finfo(values.dtype).max
    start(keep, shares, *given, *beside, kept, largest, state, pointer(least), threads=SELECTING)
    return kept, largest


def compress(
    indices: Array, values: Array, chosen: Array | None, count: int | None = None, threshold: int = 0
) -> tuple[Array, Array]:
    size = indices.size if count is None else count
    kept, of_kept = cupy.empty(size, indices.dtype), cupy.empty(size, values.dtype)
    if not size:
        return kept, of_kept
    told = Told(1) if count is None else None
    count, types = indices.size, dict[str, Any](REAL=values.dtype, INDEX=indices.dtype)
    given = cupy.ascontiguousarray(indices), cupy.ascontiguousarray(values), _or_none(chosen), threshold - 1, count
    launch(
        "compress", "sparse.cu", count, *given, kept, of_kept, cleared(1 + blocks_for(count)), pointer(told), **types
    )
    found = size if told is None else told.written().number()
    return kept[:found], of_kept[:found]


def _or_none(x: Array | None) -> Any:
    return np.uintp(0) if x is None else cupy.ascontiguousarray(x)


def contains(indices: Array, sought: Array) -> Array:
    common = np.promote_types(indices.dtype, sought.dtype)
    indices, sought = cupy.ascontiguousarray(indices, common), cupy.ascontiguousarray(sought, common)
    found = cupy.empty(sought.size, bool)
    given = indices, indices.size, sought, sought.size, found
    launch("contains", "sparse.cu", sought.size, *given, REAL="float32", INDEX=common)
    return found


def among(indices: Array, sought: Array, values: Array) -> Array:
    common = np.promote_types(indices.dtype, sought.dtype)
    indices, sought = cupy.ascontiguousarray(indices, common), cupy.ascontiguousarray(sought, common)
    kept = cupy.empty(values.size, values.dtype)
    given = indices, indices.size, sought, cupy.ascontiguousarray(values), sought.size, kept
    launch("among", "sparse.cu", sought.size, *given, REAL=values.dtype, INDEX=common)
    return kept
