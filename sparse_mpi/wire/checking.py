"""Look at what came before it is used: a message that was damaged on its way must not make kernels write elsewhere.

It costs one comparison for each index, in host memory. On a device only what the host has anyway is looked at.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi import kernels
from sparse_mpi.arrays import Array
from sparse_mpi.kernels.malformed import MalformedMessage


def check_entries(entries: np.ndarray, regions: np.ndarray) -> None:
    """Raise `MalformedMessage` unless messages have ``entries`` ``(m,)`` that fit their ``regions`` ``(m, 2)``."""
    widths = regions[:, 1] - regions[:, 0]
    if not ((entries >= 0) & (entries <= widths)).all():
        number = int(np.flatnonzero((entries < 0) | (entries > widths))[0])
        raise MalformedMessage(number, len(entries), f"it tells of {entries[number]} entries of {widths[number]}")


def check_lengths(lengths: np.ndarray, expected: np.ndarray) -> None:
    """Raise `MalformedMessage` unless messages have the ``expected`` ``lengths`` ``(m,)``."""
    if not np.array_equal(lengths, expected):
        number = int(np.flatnonzero(lengths != expected)[0])
        problem = f"it is {lengths[number]} long where its entries take {expected[number]}"
        raise MalformedMessage(number, len(lengths), problem)


def check_indices(indices: Array, counts: np.ndarray, regions: np.ndarray) -> None:
    """Raise `MalformedMessage` unless the ``indices`` of each message ascend, within all ``regions`` taken together.

    Args:
        indices: ``(nnz,)`` of all messages.
        counts: ``(m,)`` of each.
        regions: ``(m, 2)`` int64, start and stop of each one's region.
    """
    if len(indices):
        check_keys(indices, counts, int(regions[:, 0].min()), int(regions[:, 1].max()) - 1)


def check_keys(keys: Array, counts: np.ndarray, low: int, high: int) -> None:
    """Raise `MalformedMessage` unless the ``keys`` ``(nnz,)`` of each message ascend from ``low`` to ``high`` at most.

    Messages have ``counts`` ``(m,)`` keys.
    """
    number = kernels.misplaced(keys, np.asarray(counts, np.int64), low, high)
    if number >= 0:
        raise MalformedMessage(number, len(counts), f"its indices do not ascend from {low} to {high} at most")
