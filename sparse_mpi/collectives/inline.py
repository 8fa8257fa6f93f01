"""A few entries travel with the arguments that all ranks compare, without a message of their own.

Their room follows the last call's size, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from sparse_mpi.collectives.choice import FEW
from sparse_mpi.collectives.entries import Entries, joined, parted
from sparse_mpi.collectives.messages import WIDE, Format
from sparse_mpi.comm import Comm

# Words of 8 bytes: room of one rank without a call before; of all ranks together; and of all where hardly any keys meet
LEAST, MOST, APART = 128, 1 << 15, 1 << 18
_ROOM = object()  # the attribute of a communicator that has the room of its next call


def room(comm: Comm) -> int:
    """Return a rank's words for its entries, the same on all ranks."""
    return comm.attributes.get(_ROOM, min(LEAST, MOST // comm.size))


def expect(comm: Comm, words: np.ndarray, apart: bool = False) -> None:
    """Reserve room for the next call, by the ``words`` ``(P,)`` needed here; more where keys lie ``apart``."""
    most, least = (max(APART, MOST) if apart and MOST else MOST) // comm.size, min(LEAST, MOST // comm.size)
    wanted = int(words.max())
    step = 1 << max(wanted.bit_length() - 4, 0)  # a little more may come next time
    comm.attributes[_ROOM] = max(least, min(-(-wanted // step) * step, most)) if wanted <= most else least


class Announced(NamedTuple):
    """Each rank's entries, as known to all: arrays ``(P, ...)`` int64, a row a rank."""

    counts: np.ndarray  # (P,) entries
    regions: np.ndarray  # (P, 2) the smallest and the largest key
    types: np.ndarray  # (P,) numbers of the types of values
    widths: np.ndarray  # (P,) bytes that each number of a value takes
    dtypes: Mapping[int, np.dtype]  # number of a type -> type of values
    shape: tuple[int, ...]  # shape of each value

    def groups(self) -> Iterator[tuple[Format, np.ndarray]]:
        wide = (self.regions[:, 1] - self.regions[:, 0]).view(np.uint64) >= WIDE - 1  # the last key counts, too
        kinds = 2 * self.types + wide
        for kind in sorted(set(kinds.tolist())):
            form = Format(self.dtypes[kind // 2], self.shape, WIDE if kind % 2 else 1)
            yield form, np.flatnonzero(kinds == kind)

    def lengths(self) -> np.ndarray:
        found = np.zeros(len(self.counts), np.int64)
        for form, ranks in self.groups():
            found[ranks] = form.lengths(self.counts[ranks], self.regions[ranks], self.widths[ranks])
        return found


def write(entries: Entries, words: np.ndarray) -> int:
    """Write the message of at most `FEW` entries to ``words`` ``(w,)`` int64, if it fits; return its `Format.width`."""
    if not 0 < len(entries.keys) <= FEW:
        return 0
    low, high = entries.keys[[0, -1]].tolist()
    form = Format(entries.values.dtype, entries.values.shape[1:], high - low + 1)
    count, region, width = np.array([len(entries.keys)]), np.array([[low, high]]), form.width(entries.values)
    if form.lengths(count, region, np.array([width])) <= words.nbytes:
        message, _ = form.pack(entries, count, region)
        words.view(np.uint8)[: len(message)] = message
    return width


def read(rows: np.ndarray, announced: Announced) -> tuple[Entries, np.ndarray]:
    """Return the result of `gathered` from the words ``rows`` ``(P, w)`` int64 of all ranks."""
    found: dict[int, Entries] = {}
    # All memory from the first row to the last as bytes: bytes between rows are not read, and nothing is copied.
    apart, width = rows.strides[0], rows.shape[1] * rows.itemsize
    buffer = as_strided(rows[:1].view(np.uint8)[0], (apart * (len(rows) - 1) + width,), (1,), writeable=False)
    for form, ranks in announced.groups():
        counts, regions = announced.counts[ranks], announced.regions[ranks]
        lengths = form.lengths(counts, regions, announced.widths[ranks])
        entries, counts = form.unpacked(buffer, lengths, regions, apart * ranks)
        if len(ranks) == len(rows):
            return entries, counts
        found |= zip(ranks.tolist(), parted(entries, counts), strict=True)
    return joined([found[rank] for rank in range(len(rows))]), announced.counts
