"""Zero words, in which blocks of a kernel count: cut from a block cleared once in several steps."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import cupy
import numpy as np

from sparse_mpi.arrays import Array

WORDS = 1 << 17  # size of a block: one MB
SECTOR = 4  # words: a device reads a sector at once: no two kernels share one
STREAMS = 8  # streams whose blocks a thread keeps
BLOCKS = (
    threading.local()
)  # the block of each stream that a thread works on; threads share none, which would take a lock


class _Rest(NamedTuple):
    """A block's unused words, all used on one stream, behind the launch that clears it."""

    stream: Any  # held, so that no other one gets its handle meanwhile
    words: Array


def cleared(count: int) -> Array:
    """Return ``(count,)`` uint64, zeros on the current stream, for this caller alone."""
    room = -(-count // SECTOR) * SECTOR
    if 4 * room > WORDS:
        return cupy.zeros(count, np.uint64)
    stream = cupy.cuda.get_current_stream()
    key = cupy.cuda.Device().id, stream.ptr
    left: dict[tuple[int, int], _Rest] = BLOCKS.__dict__.setdefault("left", {})
    rest = left.get(key)
    if rest is None or len(rest.words) < room:
        if len(left) == STREAMS and key not in left:
            left.clear()
        rest = _Rest(stream, cupy.zeros(WORDS, np.uint64))
    left[key] = _Rest(rest.stream, rest.words[room:])
    return rest.words[:count]
