"""Few entries travel with the arguments that all ranks compare: no message of their own is needed.

How many are few depends on the call before: ranks keep room for as many as that one had, up to a limit.
"""

from __future__ import annotations

from math import prod

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.keyed.entries import Entries

LEAST, MOST = 128, 32768  # words of 8 bytes: room of one rank without a call before, and of all ranks together
_ROOM = object()  # the attribute of a communicator that has the room of its next call


def room(comm: Comm) -> int:
    """Return the words that each rank has for its entries, the same on all ranks."""
    return comm.attributes.get(_ROOM, min(LEAST, MOST // comm.size))


def expect(comm: Comm, words: np.ndarray) -> None:
    """Have the next call make room as this one, which needed so many ``words`` ``(P,)``, would have liked to have."""
    most, least = MOST // comm.size, min(LEAST, MOST // comm.size)
    wanted = int(words.max())
    comm.attributes[_ROOM] = max(least, min(1 << max(wanted - 1, 0).bit_length(), most)) if wanted <= most else least


def needed(counts: np.ndarray, dtypes: list[np.dtype], shape: tuple[int, ...]) -> np.ndarray:
    """Return the words ``(P,)`` that so many entries of each rank take, with values of these types and that shape."""
    sizes = np.array([dtype.itemsize * prod(shape) for dtype in dtypes])
    return counts + -(-counts * sizes // 8)


def write(entries: Entries, words: np.ndarray) -> None:
    """Write keys and values to ``words`` ``(w,)`` int64, if they fit."""
    count, values = len(entries.keys), np.ascontiguousarray(entries.values).reshape(-1).view(np.uint8)
    if 8 * count + len(values) <= words.nbytes:
        words[:count] = entries.keys
        words[count:].view(np.uint8)[: len(values)] = values


def read(rows: np.ndarray, counts: np.ndarray, dtypes: list[np.dtype], shape: tuple[int, ...]) -> list[Entries]:
    """Return the entries of all ranks, which have fit, in memory of their own.

    Args:
        rows: ``(P, w)`` int64, the words of all ranks.
        counts: ``(P,)`` entries of each rank.
        dtypes: of each rank's values.
        shape: of each value.
    """
    found = []
    for row, count, dtype in zip(rows, counts.tolist(), dtypes, strict=True):
        numbers = row[count:].view(np.uint8)[: count * prod(shape) * dtype.itemsize].view(dtype)
        found.append(Entries(row[:count].copy(), numbers.copy().reshape(count, *shape)))
    return found
