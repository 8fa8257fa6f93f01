"""Packed messages, pairs, dense passes, rounding and votes on a device."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.kernels.adam import COLUMNS, NADAM, NAMES, RMSPROP
from sparse_mpi.kernels.base import BALLOTS, MESSAGE, SCALED, code_places, totals
from sparse_mpi.kernels.cuda.cleared import cleared
from sparse_mpi.kernels.cuda.compilation import DIGIT, SELECTING, blocks_for, kernel, launch, start
from sparse_mpi.kernels.cuda.told import Told

MESSAGES = 31  # most messages whose records are passed to a kernel by value: 120 bytes each, of 4096 for all arguments
CHUNK = 32  # bits of a high section that a thread of `read_messages` counts
SUMMED, PARTS = 128, 4096  # blocks that sum up magnitudes at most; the fewest that each is worth
SHARED: dict[str, Any] = {"SCALED": SCALED, "CHUNK": CHUNK, "MESSAGES": MESSAGES}  # constants of device code


def write_messages(messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
    length, count = int(messages["end"][-1]), indices.size
    words = cleared(-(-length // 8)).view(np.uint32)
    given = cupy.ascontiguousarray(indices), codes.view(np.uint8), scales.view(np.uint32), count
    _on_messages("write_entries", "bits.cu", count, messages, *given, words, index=indices.dtype)
    return words.view(np.uint8)[:length]


def read_messages(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
    entries, of_codes, of_scales = totals(messages)
    indices, codes = cupy.empty(entries, index_dtype(size)), cupy.empty(of_codes, np.uint8)
    scales = cupy.empty(of_scales, np.float32)
    chunks = _chunks_of(messages)
    count = int(chunks.sum())
    if count:
        written = indices, codes, scales.view(np.uint32), cleared(1 + blocks_for(count))
        given = cupy.ascontiguousarray(buffer), count, entries, *written
        _on_messages("read_messages", "bits.cu", count, messages, *given, index=indices.dtype, chunks=chunks)
    return indices, codes, scales


def _chunks_of(messages: np.ndarray) -> np.ndarray:
    return -(-np.where(messages["span"], messages["span"], messages["entries"]) // CHUNK)


def write_int8(messages: np.ndarray, values: Array, short: bool) -> tuple[Array, Array]:
    buffer, back = cupy.empty(int(messages["end"][-1]), np.uint8), cupy.empty(values.size, np.float32)
    given = cupy.ascontiguousarray(values), int(short), buffer, back
    _on_blocks("write_int8", messages, *given)
    return buffer, back


def read_int8(messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array]:
    entries = totals(messages)[0]
    indices, values = cupy.empty(entries, index_dtype(size)), cupy.empty(entries, np.float32)
    _on_blocks("read_int8", messages, cupy.ascontiguousarray(buffer), indices, values, index=indices.dtype)
    return indices, values


def _on_blocks(name: str, messages: np.ndarray, *arguments: object, index: Any = np.int32) -> None:
    blocks = totals(messages)[2]
    types: dict[str, Any] = {"index": index, "blocks": blocks, "threads": SCALED}
    _on_messages(name, "levels.cu", blocks, messages, *arguments, **types)


def _on_messages(
    name: str,
    source: str,
    count: int,
    messages: np.ndarray,
    *arguments: object,
    index: Any,
    chunks: np.ndarray | None = None,
    **options: Any,
) -> None:
    table = np.zeros(max(len(messages), MESSAGES), MESSAGE)
    table[: len(messages)] = messages
    if chunks is not None:
        table["end"][: len(messages)] = chunks.cumsum() - chunks
    many = len(messages) > MESSAGES
    given: Any = cupy.asarray(table.view(np.int64)) if many else table.view(f"V{table.nbytes}")
    types: dict[str, Any] = {
        "REAL": "float32",
        "INDEX": np.dtype(index),
        **SHARED,
        **({"MANY": 1} if many else {}),
    }
    launch(name, source, count, given, len(messages), *arguments, **options, **types)


def split_counts(indices: Array, boundaries: np.ndarray) -> Told:
    # The host waits when it looks at the counts
    regions = len(boundaries) - 1
    told, indices = Told(regions, boundaries), cupy.ascontiguousarray(indices)
    given = indices, indices.size, regions, told.pointer
    launch("split_counts", "sparse.cu", regions, *given, REAL="float32", INDEX=indices.dtype)
    return told.written()


def to_pairs(indices: Array, values: Array, unit: np.dtype) -> Array:
    split, rest = indices.itemsize // unit.itemsize, values.itemsize // unit.itemsize
    pairs = cupy.empty((indices.size, split + rest), unit)
    columns = (cupy.ascontiguousarray(column).view(unit) for column in (indices, values))
    _pairs("to_pairs", pairs, *columns, pairs.size, split, rest, pairs)
    return pairs


def from_pairs(pairs: Array, index: np.dtype, value: np.dtype) -> tuple[Array, Array]:
    indices, values = cupy.empty(len(pairs), index), cupy.empty(len(pairs), value)
    split, rest = index.itemsize // pairs.itemsize, value.itemsize // pairs.itemsize
    columns = (column.view(pairs.dtype) for column in (indices, values))
    _pairs("from_pairs", pairs, cupy.ascontiguousarray(pairs), pairs.size, split, rest, *columns)
    return indices, values


def _pairs(name: str, pairs: Array, *arguments: object) -> None:
    launch(name, "sparse.cu", pairs.size, *arguments, REAL="float32", INDEX=pairs.dtype)


def accumulate(residual: Array, gradient: Array) -> None:
    # CuPy's own addition would take subnormal numbers for zero
    given, of_gradient = cupy.ascontiguousarray(gradient), gradient.dtype
    of_both = residual, given, residual.size
    launch("accumulate", "accumulate.cu", residual.size, *of_both, REAL=residual.dtype, GRADIENT=of_gradient)


def to_bfloat16(x: Array, back: Array | None = None) -> Array:
    x, codes = cupy.ascontiguousarray(x), cupy.empty(x.size, np.uint16)
    given = x, x.size, codes, np.uintp(0) if back is None else back
    launch("to_bfloat16", "dense.cu", x.size, *given, REAL=x.dtype)
    return codes


def subtract_dense(x: Array, values: Array) -> None:
    values = cupy.ascontiguousarray(values.astype(x.dtype, copy=False))
    launch("subtract_dense", "dense.cu", x.size, x, values, x.size, REAL=x.dtype)


def follow_squares(mean: Array, x: Array, weight: float) -> None:
    if mean.size:
        followed = kernel("follow_squares", "dense.cu", REAL=mean.dtype)
        start(followed, blocks_for(mean.size), mean, cupy.ascontiguousarray(x), mean.dtype.type(weight), mean.size)


def adam(
    kind: int,
    gradient: Array,
    arrived: Array | None,
    seconds: Array | None,
    state: tuple[Array, Array, Array],
    weights: Array | None,
    table: np.ndarray,
    ends: np.ndarray,
    update: Array,
) -> Array | None:
    size, nothing = gradient.size, np.uintp(0)
    types: dict[str, Any] = {"REAL": gradient.dtype, "INDEX": np.dtype(np.int32 if arrived is None else arrived.dtype)}
    types |= {name: number for number, name in enumerate(NAMES)}
    types |= {"COLUMNS": COLUMNS, "KIND": kind, "NADAM": NADAM, "RMSPROP": RMSPROP}
    came: Array | None = None
    if arrived is not None:
        came = cupy.zeros(size, np.uint8)
        aligned = seconds is not None and len(seconds) < size
        dense = cupy.zeros(size, gradient.dtype) if aligned else seconds
        both = (seconds, came, dense) if aligned else (nothing, came, nothing)
        launch("spread", "adam.cu", len(arrived), arrived, len(arrived), *both, **types)
        seconds = dense
    beside = [nothing if x is None else cupy.ascontiguousarray(x) for x in (came, seconds, weights)]
    own = [nothing if x.size == 0 else x for x in state]
    given = gradient, size, *beside, cupy.asarray(table), cupy.asarray(ends), len(ends), *own, update
    launch("adam", "adam.cu", size, *given, **types)
    return None


def standardized(x: Array, squares: Array) -> Array:
    found = cupy.empty(x.size, x.dtype)
    most = np.finfo(x.dtype).max
    launch("standardized", "dense.cu", x.size, x, squares, most, x.size, found, REAL=x.dtype)
    return found


def to_int8(x: Array, indices: Array, edges: np.ndarray, short: bool = False) -> tuple[Array, Array]:
    codes, scales = cupy.empty(x.size, np.int8), cupy.empty(len(edges) - 1, np.float32)
    given = cupy.ascontiguousarray(x), cupy.ascontiguousarray(indices), cupy.asarray(edges)
    _start("to_int8", scales.size, *given, int(short), codes, scales, index=indices.dtype)
    return codes, scales


def from_int8(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    x = cupy.empty(codes.size, np.float32)
    _start("from_int8", scales.size, codes, scales, cupy.asarray(edges), x)
    return x


def to_int4(x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded("to_int4", 4, x, edges, cupy.ascontiguousarray(indices), index=indices.dtype)


def to_int2(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded("to_int2", 2, x, edges)


def to_log4(x: Array, edges: np.ndarray) -> tuple[Array, Array]:
    return _coded("to_log4", 4, x, edges)


def _coded(name: str, bits: int, x: Array, edges: np.ndarray, *more: Array, **types: Any) -> tuple[Array, Array]:
    places = code_places(edges, bits)
    codes, scales = cupy.empty(int(places[-1]), np.uint8), cupy.empty(len(edges) - 1, np.float32)
    _start(name, scales.size, cupy.ascontiguousarray(x), *more, *_both(edges, places), codes, scales, **types)
    return codes, scales


def from_levels(codes: Array, scales: Array, edges: np.ndarray, bits: int) -> Array:
    x = cupy.empty(int(edges[-1]), np.float32)
    _start("from_levels", scales.size, codes, scales, *_both(edges, code_places(edges, bits)), bits, x)
    return x


def from_log4(codes: Array, scales: Array, edges: np.ndarray) -> Array:
    x = cupy.empty(int(edges[-1]), np.float32)
    _start("from_log4", scales.size, codes, scales, *_both(edges, code_places(edges, 4)), x)
    return x


def _both(edges: np.ndarray, places: np.ndarray) -> Array:
    return cupy.asarray(np.stack([edges, places]))


def _start(name: str, blocks: int, *arguments: object, index: Any = np.int32) -> None:
    types: dict[str, Any] = {"REAL": "float32", "INDEX": np.dtype(index), **SHARED}
    launch(name, "levels.cu", blocks, *arguments, blocks=blocks, threads=SCALED, **types)


def cast_votes(
    x: Array, indices: Array, values: Array, quotas: np.ndarray, own: int = 0, more: int = 0
) -> tuple[Array, Array]:
    count, ranks, tiles = len(values), len(quotas), max(blocks_for(len(values)), 1)
    width, real, most = -(-len(x) // ranks), values.dtype, int(quotas.sum()) + more
    number = index_dtype(width * ranks)
    kept, largest = cupy.empty(most, number), cupy.empty(most, real)
    dealt, deltas, worth = cupy.empty(count, number), cupy.empty_like(values), cupy.empty_like(values)
    counts, types = (cupy.empty if count else cupy.zeros)(ranks * tiles, np.int64), (indices.dtype, number)
    _vote("count_dealt", count, types, indices, ranks, counts)
    ends = cupy.cumsum(counts)
    _vote("deal", count, types, x, indices, values, ranks, width, ends, dealt, deltas, worth, real=real)
    keep, told = kernel("keep_votes", "largest.cu", SELECTING, DIGIT=DIGIT, REAL=real, INDEX=number), Told(0, quotas)
    given = ends, tiles, width, own, more, most, dealt, deltas, worth, told.pointer, kept, largest
    start(keep, ranks, *given, threads=SELECTING)
    told.written()
    return kept, largest


def undeal(numbers: Array, size: int, ranks: int) -> Array:
    indices = cupy.empty(len(numbers), index_dtype(size))
    types = (indices.dtype, numbers.dtype)
    _vote("undeal", len(numbers), types, numbers, ranks, -(-size // ranks), indices)
    return indices


def add_dealt(x: Array, numbers: Array, values: Array, size: int, ranks: int) -> None:
    given, types = (x, numbers, values, ranks, -(-size // ranks)), (numbers.dtype, numbers.dtype)
    _vote("add_dealt", len(numbers), types, *given, real=values.dtype)


def to_ballots(values: Array, indices: Array, size: int) -> tuple[Array, Array, Array]:
    coded, blocks = cupy.empty(len(indices), index_dtype(BALLOTS * size)), min(SUMMED, blocks_for(len(indices), PARTS))
    lows, rounded, of_blocks = cupy.empty_like(values), cupy.empty_like(values), cupy.empty(3 * blocks, np.int64)
    types = (indices.dtype, coded.dtype)
    _vote("sum_levels", len(values), types, values, of_blocks, blocks=blocks)
    _vote("to_ballots", len(values), types, values, indices, of_blocks, blocks, coded, lows, rounded)
    return coded, lows, rounded


def from_ballots(messages: np.ndarray, coded: Array, lows: Array, size: int) -> tuple[Array, Array]:
    indices, values = cupy.empty(len(coded), index_dtype(size)), cupy.empty(len(coded), np.float32)
    given, types = (len(coded), coded, lows, indices, values), {"index": indices.dtype, "NUMBER": coded.dtype}
    _on_messages("from_ballots", "votes.cu", len(coded), messages, *given, **types)
    return indices, values


def _vote(
    name: str, count: int, types: tuple[Any, Any], *arguments: Any, real: Any = "float32", blocks: int = 0
) -> None:
    """Start a kernel of votes.cu for ``count`` entries, on a thread each or on ``blocks`` blocks.

    ``types`` are the index type and the type of numbers or codes.
    """
    given = [cupy.ascontiguousarray(a) if isinstance(a, cupy.ndarray) else a for a in arguments]
    index, number = types
    launch(name, "votes.cu", count, count, *given, blocks=blocks, REAL=real, INDEX=index, NUMBER=number, **SHARED)
