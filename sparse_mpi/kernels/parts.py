"""Parts of a vector with equal quotas, and their kernels of whole-array functions.

Runs of `RUN` neighbouring entries are dealt out to V parts. Each round deals a run to each part, from one chosen by a
hash of the round's number, which spreads rows and columns of matrices of any width. A part is therefore a fair sample
of the vector. Its entries have *places*, in order; places beyond the vector's end are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparse_mpi.arrays import Array, first_of, index_dtype, magnitude_bits, namespace, widened

RUN = 64  # neighbouring entries in one part: as many as kernels compare at once
SHORT = 1 << 16  # places of a part up to which a place has two bytes


@dataclass(frozen=True)
class EqualParts:
    """Parts of a vector, with the same number of entries taken from each."""

    size: int  #: n, length of the vector
    number: int  #: V, parts
    quota: int  #: q, entries taken of each part, at most its places

    @cached_property
    def rounds(self) -> int:
        """Return a part's number of runs."""
        return -(-self.size // (RUN * self.number))

    @cached_property
    def width(self) -> int:
        """Return a part's number of places."""
        return RUN * self.rounds

    @cached_property
    def place(self) -> np.dtype:
        """Return the type of places in messages: uint16 or uint32."""
        return np.dtype(np.uint16 if self.width <= SHORT else np.uint32)

    def rows(self, x: Array) -> Array:
        """Return the entries of ``x`` ``(n,)`` by part and place, ``(V, width)``."""
        xp = namespace(x)
        padded = xp.zeros(self.number * self.width, x.dtype)
        padded[: self.size] = x
        turn, part = xp.arange(self.rounds)[:, None], xp.arange(self.number)[None]
        runs = padded.reshape(self.rounds, self.number, RUN)[turn, (part - first_of(turn, self.number)) % self.number]
        return runs.transpose(1, 0, 2).reshape(self.number, self.width)

    def indices(self, places: Array) -> Array:
        """Return the indices of ``places`` ``(V, q)``, part by part."""
        xp = namespace(places)
        places, part = places.astype(np.int64), xp.arange(self.number)[:, None]
        turn = places // RUN
        return (turn * self.number + (part - first_of(turn, self.number)) % self.number) * RUN + places % RUN


def top_k_rows(matrix: Array, k: int) -> tuple[Array, Array]:
    order = np.argsort(-magnitude_bits(matrix), axis=1, kind="stable")[:, :k]
    columns = np.sort(order, axis=1)
    return columns.astype(np.int32), np.take_along_axis(matrix, columns, axis=1)


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> tuple[Array, Array]:
    if add is not None:
        x += widened(add)
    places, values = top_k_rows(parts.rows(x), parts.quota)
    return places.astype(parts.place), values + values.dtype.type(0)  # no -0


def add_parts(places: Array, values: Array, width: int, thresholds: Array) -> tuple[Array, Array]:
    parts = len(thresholds) - 1
    chosen, largest = top_k_rows(_add_up_rows(places, values, width, parts), values.shape[1] // parts)
    return chosen.astype(places.dtype), largest + largest.dtype.type(0)


def _add_up_rows(places: Array, values: Array, width: int, parts: int) -> Array:
    """Return sums ``(parts, width)`` of messages ``(P, parts * q)``, added in the order of ranks."""
    xp = namespace(values)
    quota = values.shape[1] // parts
    sums, row = xp.zeros((parts, width), values.dtype), xp.arange(parts).repeat(quota)
    for at, of_rank in zip(places, values, strict=True):
        sums[row, at] += of_rank
    return sums


def from_parts(
    parts: EqualParts, places: Array, values: Array, mine: tuple[Array, Array], owed: Array | None, first: int
) -> tuple[Array, Array, Array]:
    xp = namespace(values)
    row, own = xp.arange(parts.number)[:, None], xp.zeros((parts.number, parts.width), values.dtype)
    own[row, mine[0]] = mine[1]
    sent = own[row, places]
    if owed is not None:
        sent[first : first + len(owed)] -= owed
    there = values.reshape(-1) != 0
    indices = parts.indices(places).reshape(-1)[there]
    order = xp.argsort(indices)
    return (
        indices[order].astype(index_dtype(parts.size)),
        values.reshape(-1)[there][order],
        sent.reshape(-1)[there][order],
    )
