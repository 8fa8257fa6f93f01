"""Parts with quotas on a device: a block selects from each part; each of the three functions is one launch."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.kernels.base import LONG
from sparse_mpi.kernels.cuda.compilation import DIGIT, SELECTING, THREADS, kernel, start
from sparse_mpi.kernels.parts import RUN, EqualParts

STATIC = 12 << 10  # bytes of shared memory that kernels need beside a row, at most
BLOCKS = 1 << 10  # blocks that order results: each looks for its first one in every part


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> Array:
    # Thresholds are left as they are: a row is searched where it lies, in shared memory
    given = [x] if add is None else [x, cupy.ascontiguousarray(add)]
    types = {} if add is None else {"GRADIENT": add.dtype}
    sizes, length = (parts.width, parts.quota, parts.each), parts.length(x.dtype)
    messages = cupy.empty((parts.ranks, length), np.uint8)
    _on_rows("select_parts", parts.number, parts, x.dtype, [*given, x.size, *sizes, length], messages, **types)
    return messages


def add_parts(messages: Array, parts: EqualParts, thresholds: Array, real: np.dtype) -> Array:
    # A place beyond its part is left out: a device can raise nothing
    given = cupy.ascontiguousarray(messages), len(messages), parts.width, parts.quota, parts.length(real)
    message = cupy.empty(parts.length(real), np.uint8)
    _on_rows("add_parts", parts.each, parts, real, given, message)
    return message


def _on_rows(
    name: str, rows: int, parts: EqualParts, real: np.dtype, given: Sequence[object], found: Array, **types: object
) -> None:
    most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] - STATIC
    needed, threads = parts.width * real.itemsize, SELECTING if parts.width >= LONG else THREADS
    fits = needed <= most
    types |= {"IN_SHARED": 1} if fits else {}
    largest = kernel(name, "parts.cu", threads, **_types(real, parts.place), **types)
    if fits:
        largest.max_dynamic_shared_size_bytes = most
    room = np.uintp(0) if fits else cupy.empty((rows, parts.width), real)
    start(largest, rows, *given, room, found, threads=threads, shared_bytes=needed if fits else 0)


def from_parts(
    messages: Array, parts: EqualParts, own: Array, owed: Array | None, rank: int, real: np.dtype
) -> tuple[Array, Array, Array]:
    # Zeros stay, so that the host knows the number of results
    indices, count = index_dtype(parts.size), parts.within
    found = cupy.empty(count, indices), cupy.empty(count, real), cupy.empty(count, real)
    tiles = -(-parts.rounds * parts.number // THREADS)
    each = -(-tiles // BLOCKS)
    low = rank * parts.each
    of_owed = (np.uintp(0), 0, 0) if owed is None else (cupy.ascontiguousarray(owed), low, low + parts.each)
    sizes = parts.size, parts.number, parts.quota, parts.each, parts.length(real), parts.rounds, each, count
    by_index = kernel("from_parts", "parts.cu", THREADS, **_types(real, parts.place, indices))
    given = cupy.ascontiguousarray(messages), cupy.ascontiguousarray(own)
    start(by_index, -(-tiles // each), *given, *of_owed, *sizes, *found)
    return found


def _types(real: np.dtype, place: np.dtype, index: object = "int32") -> dict[str, object]:
    of_places = {2: "unsigned short", 4: "unsigned"}[place.itemsize]
    return {"REAL": real, "PLACE": of_places, "INDEX": index, "RUN": RUN, "DIGIT": DIGIT}
