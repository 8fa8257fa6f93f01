"""Parts with quotas on a device: a block selects from each part; each selection and each sum is one launch."""

from __future__ import annotations

import cupy
import numpy as np

from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.kernels.base import LONG
from sparse_mpi.kernels.cuda.cleared import cleared
from sparse_mpi.kernels.cuda.compilation import DIGIT, SELECTING, THREADS, blocks_for, kernel, start
from sparse_mpi.kernels.cuda.told import Told
from sparse_mpi.kernels.parts import RUN, EqualParts

STATIC = 12 << 10  # bytes of shared memory that kernels need beside a row, at most


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> tuple[Array, Array]:
    # Thresholds are left as they are: a row is searched where it lies, in shared memory
    given = [x] if add is None else [x, cupy.ascontiguousarray(add)]
    types = {} if add is None else {"GRADIENT": add.dtype}
    sizes = parts.number, parts.width, parts.quota
    return _on_rows("select_parts", sizes, x.dtype, parts.place, *given, x.size, **types)


def add_parts(places: Array, values: Array, width: int, thresholds: Array) -> tuple[Array, Array]:
    # A place beyond its part is left out: a device can raise nothing
    number, (ranks, sent) = len(thresholds) - 1, values.shape
    given = cupy.ascontiguousarray(places), cupy.ascontiguousarray(values), ranks
    return _on_rows("add_parts", (number, width, sent // number), values.dtype, places.dtype, *given)


def _on_rows(
    name: str, sizes: tuple[int, int, int], real: np.dtype, place: np.dtype, *given: object, **types: object
) -> tuple[Array, Array]:
    number, width, quota = sizes
    most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] - STATIC
    needed, threads = width * real.itemsize, SELECTING if width >= LONG else THREADS
    fits = needed <= most
    types |= {"IN_SHARED": 1} if fits else {}
    largest = kernel(name, "parts.cu", threads, **_types(real, place), **types)
    if fits:
        largest.max_dynamic_shared_size_bytes = most
    rows = np.uintp(0) if fits else cupy.empty((number, width), real)
    found = cupy.empty((number, quota), place), cupy.empty((number, quota), real)
    start(largest, number, *given, width, quota, rows, *found, threads=threads, shared_bytes=needed if fits else 0)
    return found


def from_parts(
    parts: EqualParts, places: Array, values: Array, mine: tuple[Array, Array], owed: Array | None, first: int
) -> tuple[Array, Array, Array]:
    # One launch, and the host waits for the number of results
    indices = cupy.empty(values.size, index_dtype(parts.size))
    totals, sent = cupy.empty(values.size, values.dtype), cupy.empty(values.size, values.dtype)
    if not values.size:
        return indices, totals, sent
    blocks, told = blocks_for(parts.size, RUN * THREADS), Told(1)
    given = [cupy.ascontiguousarray(x) for x in (places, values, *mine)]
    of_owed = (np.uintp(0), 0, 0) if owed is None else (cupy.ascontiguousarray(owed), first, first + len(owed))
    written = indices, totals, sent, cleared(1 + blocks), told.pointer
    by_index = kernel("from_parts", "parts.cu", THREADS, **_types(values.dtype, parts.place, indices.dtype))
    start(by_index, blocks, *given, *of_owed, parts.size, parts.number, parts.quota, *written)
    found = min(told.written().number(), values.size)
    return indices[:found], totals[:found], sent[:found]


def _types(real: np.dtype, place: np.dtype, index: object = "int32") -> dict[str, object]:
    of_places = {2: "unsigned short", 4: "unsigned"}[place.itemsize]
    return {"REAL": real, "PLACE": of_places, "INDEX": index, "RUN": RUN, "DIGIT": DIGIT}
