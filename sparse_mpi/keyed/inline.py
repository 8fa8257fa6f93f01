"""Few entries travel with the arguments that all ranks compare: no message of their own is needed."""

from __future__ import annotations

import numpy as np

from sparse_mpi.keyed.entries import Entries

MOST, ALL = 128, 8192  # words of 8 bytes, of one rank and of all


def room(ranks: int) -> int:
    """Return the words that each rank has for its entries."""
    return min(MOST, ALL // ranks)


def write(entries: Entries, words: np.ndarray) -> None:
    """Write keys and values to ``words`` ``(w,)`` int64, if they fit."""
    count, values = len(entries.keys), np.ascontiguousarray(entries.values).reshape(-1).view(np.uint8)
    if 8 * count + len(values) <= words.nbytes:
        words[:count] = entries.keys
        words[count:].view(np.uint8)[: len(values)] = values


def read(rows: np.ndarray, counts: np.ndarray, dtypes: list[np.dtype], shape: tuple[int, ...]) -> list[Entries] | None:
    """Return the entries of all ranks, or None if those of some rank did not fit.

    Args:
        rows: ``(P, w)`` int64, the words of all ranks.
        counts: ``(P,)`` entries of each rank.
        dtypes: of each rank's values.
        shape: of each value.
    """
    found, numbers = [], int(np.prod(shape))
    for row, count, dtype in zip(rows, counts.tolist(), dtypes, strict=True):
        length = count * numbers * dtype.itemsize
        if 8 * count + length > row.nbytes:
            return None
        values = row[count:].view(np.uint8)[:length].view(dtype).reshape(count, *shape)
        found.append(Entries(row[:count], values))
    return found
