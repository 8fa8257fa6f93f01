"""Keys that are strings: a dictionary on which all ranks agree numbers them, in the order of the strings.

Strings are compared as they are, never by a checksum, so that no two can be taken for one. They travel as bytes: of a
str in UTF-8, whose order is that of its code points, as Python sorts. Each rank owns a range of strings, and ranges
hold about as many strings of all ranks; they end at quantiles of samples, as regions of keys do.

Of m distinct strings on a rank, and u of all, a rank sends samples to all, its m to their owners, a number for each
string it owns to those who have it, and to each rank those of its u strings that stand in the result there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from sparse_mpi.arrays import Array, index_dtype
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import check_consistency
from sparse_mpi.comm.quantiles import Pool, told
from sparse_mpi.kernels.base import MalformedMessage

UNKNOWN, INTEGERS, STR, BYTES, WIDE = range(5)  # types of keys; a rank without keys may not know
STRINGS = (STR, BYTES)
NAMES = ("none", "integers", "str", "bytes", "pairs of integers")
SAMPLES, LONGEST = 32, 64  # strings that a rank shows to all, and the bytes of each
_HEAD = 9  # bytes of a message that say how many strings there are, and how wide their lengths


def encoded(keys: Iterable[str | bytes]) -> list[bytes]:
    """Return strings, all of one type, as bytes; lone surrogates as three, as Python's "surrogatepass" does."""
    return [key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass") for key in keys]


def ordered(strings: list[bytes]) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct strings in their order, and the place of each of ``strings`` among them ``(m,)`` int64."""
    distinct = sorted(set(strings))
    return distinct, _places(strings, distinct)


def type_of_all(types: np.ndarray, mine: int, comm: Comm) -> int:
    """Return the type of keys that all ranks have which know it, of the ``types`` ``(P,)`` of each.

    Raises:
        ValueError: there are several; raised on every rank.
    """
    known = set(types.tolist()) - {UNKNOWN}
    if len(known) > 1:
        check_consistency(comm, f"keys: {NAMES[mine]}")
    return known.pop() if known else UNKNOWN


class Dictionary:
    """The distinct strings of all ranks, each of which holds a range of them. Collective to make.

    Args:
        strings: those of this rank, distinct and in their order.
        kind: `STR` or `BYTES`, the same on all ranks.
        comm: all ranks.

    Attributes:
        rank: of this process.
        numbers: ``(m,)`` int64, ascending: the place of each of ``strings`` among all distinct ones.
    """

    def __init__(self, strings: Sequence[bytes], kind: int, comm: Comm) -> None:
        self._comm, self._kind = comm, kind
        self.rank: int = comm.rank
        # Owners: each gets the strings of its range, from all ranks.
        cuts = [0, *(bisect_left(strings, first) for first in _first_strings(strings, comm)), len(strings)]
        parts = _exchanged([strings[start:end] for start, end in pairwise(cuts)], comm)
        self._own = sorted(set().union(*parts))
        # Numbers: those of an owner follow those of the owner before.
        counts = comm.allgather(np.array([len(self._own)]), control=True)[:, 0]
        self._first = int(counts[: comm.rank].sum())
        found = np.concatenate([_places(part, self._own) for part in parts]) + self._first
        numbers, _ = comm.alltoallv(found.astype(index_dtype(int(counts.sum()))), [*map(len, parts)], np.diff(cuts))
        self.numbers: np.ndarray = numbers.astype(np.int64)

    def strings(self, ranges: np.ndarray) -> np.ndarray:
        """Return this rank's range of strings, objects of type str or bytes. Collective.

        Args:
            ranges: ``(P, 2)`` int64, the first and the last number that each rank wants.
        """
        ends = np.clip(ranges + [0, 1] - self._first, 0, len(self._own)).tolist()
        parts = _exchanged([self._own[start:end] for start, end in ends], self._comm)
        found = [string for part in parts for string in part]
        if self._kind == STR:
            return np.array([string.decode("utf-8", "surrogatepass") for string in found], object)
        return np.array(found, object)


def _places(strings: Sequence[bytes], distinct: Sequence[bytes]) -> np.ndarray:
    """Return the place of each string among ``distinct`` ones."""
    place = dict(zip(distinct, range(len(distinct)), strict=True))
    return np.fromiter(map(place.__getitem__, strings), np.int64, len(strings))


def _first_strings(strings: Sequence[bytes], comm: Comm) -> list[bytes]:
    """Return the strings ``(P - 1)`` at which the ranges of all ranks but the first begin."""
    each = min(len(strings), SAMPLES)
    at = told(np.arange(len(strings)), each, comm.rank)[3:].tolist()
    message = _packed([strings[place][:LONGEST] for place in at])
    rows = comm.allgather(np.array([len(strings), len(message)]), control=True)
    shown = _unpacked(*comm.allgatherv(message, rows[:, 1]))
    # A sample stands for as many strings as its rank has for each of those it shows.
    told_by = zip(shown, rows[:, 0].tolist(), strict=True)
    samples = [(sample, count / len(part)) for part, count in told_by for sample in part]
    if not samples:
        return [b""] * (comm.size - 1)
    samples.sort()
    weights = np.array([weight for _, weight in samples])
    pool = Pool(rows[:, 0], np.arange(len(samples)), weights, 0, len(samples) - 1)
    return [samples[place][0] for place in pool.quantiles(comm.size).tolist()]


def _exchanged(parts: Sequence[Sequence[bytes]], comm: Comm) -> list[list[bytes]]:
    """Send each rank its part of some strings, and return what comes from each."""
    messages = [_packed(part) for part in parts]
    return _unpacked(*comm.alltoallv(np.concatenate(messages), np.array([*map(len, messages)])))


def _packed(strings: Sequence[bytes]) -> np.ndarray:
    """Return a message of strings: how many, the bytes of a length, the lengths, all strings; none is empty."""
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    if not len(lengths):
        return np.empty(0, np.uint8)
    kind = np.min_scalar_type(int(lengths.max()))
    head = np.array([len(lengths)]).tobytes() + bytes([kind.itemsize])
    return np.frombuffer(b"".join([head, lengths.astype(kind).tobytes(), *strings]), np.uint8)


def _unpacked(buffer: Array, lengths: np.ndarray) -> list[list[bytes]]:
    """Return the strings of each of the messages of these ``lengths`` that stand in ``buffer``."""
    found: list[list[bytes]] = []
    for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        message = buffer[end - length : end].tobytes()
        if not message:
            found.append([])
            continue
        count, width = int(np.frombuffer(message, np.int64, 1)[0]), message[_HEAD - 1]
        sizes = np.zeros(0, np.int64)
        if width in (1, 2, 4, 8) and 0 < count <= (len(message) - _HEAD) // width:
            sizes = np.frombuffer(message, f"u{width}", count, _HEAD).astype(np.int64)
        if not len(sizes) or (sizes < 0).any() or sizes.sum() != len(message) - _HEAD - count * width:
            raise MalformedMessage(len(found), len(lengths), f"it tells of {count} strings in {len(message)} bytes")
        ends = (np.cumsum(sizes) + _HEAD + count * width).tolist()
        found.append([message[start:end] for start, end in pairwise([_HEAD + count * width, *ends])])
    return found
