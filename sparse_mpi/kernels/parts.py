"""Parts of a vector with equal quotas, and their kernels of whole-array functions.

Runs of `RUN` neighbouring entries are dealt out to V parts. Each round deals a run to each part, from one chosen by a
hash of the round's number, which spreads rows and columns of matrices of any width. A part is therefore a fair sample
of the vector. Its entries have *places*, in order; places beyond the vector's end are zeros.

Every rank owns V / P neighbouring parts. A *message* to or from an owner has q entries of each of its parts: the bytes
of all values, then those of all places, which ascend in each part, and zeros up to a multiple of 8 of these.
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
    ranks: int = 1  #: P, which own V / P parts each

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

    @cached_property
    def each(self) -> int:
        """Return the number of parts of a rank."""
        return self.number // self.ranks

    @cached_property
    def entries(self) -> int:
        """Return the number of entries of a message."""
        return self.each * self.quota

    @cached_property
    def within(self) -> int:
        """Return the number of entries of all messages to owners whose places lie within the vector."""
        if self.quota <= self.width - RUN:
            return self.number * self.quota
        last = self.indices(np.full((self.number, 1), self.width - RUN))[:, 0]  # where each part's last run begins
        within = self.width - RUN + (self.size - last).clip(0, RUN)
        return int(within.clip(max=self.quota).sum())

    def length(self, real: np.dtype) -> int:
        """Return the bytes of a message with values of type ``real``."""
        return self.entries * real.itemsize + -(-self.entries * self.place.itemsize // 8) * 8

    def opened(self, messages: Array, real: np.dtype) -> tuple[Array, Array]:
        """Return places and values ``(m, entries)`` of ``messages`` ``(m, length)`` uint8."""
        xp, ends = namespace(messages), self.entries * real.itemsize
        places = messages[:, ends : ends + self.entries * self.place.itemsize]
        return xp.ascontiguousarray(places).view(self.place), xp.ascontiguousarray(messages[:, :ends]).view(real)

    def written(self, places: Array, values: Array) -> Array:
        """Return the messages ``(m, length)`` of places and values ``(m, entries)``."""
        xp, ends = namespace(values), self.entries * values.itemsize
        messages = xp.zeros((len(values), self.length(values.dtype)), np.uint8)
        messages[:, :ends] = xp.ascontiguousarray(values).view(np.uint8)
        end = ends + self.entries * self.place.itemsize
        messages[:, ends:end] = xp.ascontiguousarray(places.astype(self.place)).view(np.uint8)
        return messages

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


def select_parts(x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> Array:
    if add is not None:
        x += widened(add)
    places, values = top_k_rows(parts.rows(x), parts.quota)
    return _by_owner(parts, parts.ranks, places, values)


def add_parts(messages: Array, parts: EqualParts, thresholds: Array, real: np.dtype) -> Array:
    places, values = parts.opened(messages, real)
    sums, row = np.zeros((parts.each, parts.width), real), np.arange(parts.each).repeat(parts.quota)
    for at, of_rank in zip(places, values, strict=True):
        sums[row, at] += of_rank
    return _by_owner(parts, 1, *top_k_rows(sums, parts.quota))[0]


def _by_owner(parts: EqualParts, owners: int, places: Array, values: Array) -> Array:
    values = values + values.dtype.type(0)  # no -0
    return parts.written(places.reshape(owners, -1), values.reshape(owners, -1))


def from_parts(
    messages: Array, parts: EqualParts, own: Array, owed: Array | None, rank: int, real: np.dtype
) -> tuple[Array, Array, Array]:
    places, values, of_own, terms = (
        x.reshape(parts.number, -1) for x in (*parts.opened(messages, real), *parts.opened(own, real))
    )
    row, line = np.arange(parts.number)[:, None], np.zeros((parts.number, parts.width), real)
    line[row, of_own] = terms
    sent = line[row, places]
    if owed is not None:
        sent[rank * parts.each : (rank + 1) * parts.each] -= owed.reshape(parts.each, -1)
    there = values.reshape(-1) != 0
    indices = parts.indices(places).reshape(-1)[there]
    order = np.argsort(indices)
    return (
        indices[order].astype(index_dtype(parts.size)),
        values.reshape(-1)[there][order],
        sent.reshape(-1)[there][order],
    )
