"""Keys that are strings: their types, their order, and the messages in which they travel to a `Dictionary`.

They are compared in full, never by a checksum, and travel as bytes: str as UTF-8, whose order is Python's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.collectives.dictionary import Keys
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import check_consistency
from sparse_mpi.kernels.base import MalformedMessage

UNKNOWN, INTEGERS, STR, BYTES, WIDE = range(5)  # types of keys; a rank without keys may not know
STRINGS = (STR, BYTES)
NAMES = ("none", "integers", "str", "bytes", "pairs of integers")
LONGEST = 64  # bytes of a string that a rank shows to all
_HEAD = 9  # bytes of a message that say how many strings there are, and how wide their lengths


def encoded(keys: Iterable[str | bytes]) -> list[bytes]:
    """Return strings, all of one type, as bytes; lone surrogates as in Python's "surrogatepass"."""
    return [key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass") for key in keys]


def ordered(strings: list[bytes]) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct strings in their order, and the place of each of ``strings`` among them ``(m,)`` int64."""
    distinct = sorted(set(strings))
    place = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.fromiter(map(place.__getitem__, strings), np.int64, len(strings))


def type_of_all(types: np.ndarray, mine: int, comm: Comm) -> int:
    """Return the type of keys on all ranks that know it; of several ``types`` ``(P,)`` all raise ValueError."""
    known = set(types.tolist()) - {UNKNOWN}
    if len(known) > 1:
        check_consistency(comm, f"keys: {NAMES[mine]}")
    return known.pop() if known else UNKNOWN


class StringKeys(Keys):
    def __init__(self, kind: int) -> None:
        self._kind = kind

    def sample(self, keys: Sequence[bytes], places: np.ndarray) -> list[bytes]:
        return [keys[place][:LONGEST] for place in places.tolist()]

    def packed(self, keys: Sequence[bytes]) -> np.ndarray:
        # How many, the bytes of a length, the lengths, all strings; the message of none is empty
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        if not len(lengths):
            return np.empty(0, np.uint8)
        kind = np.min_scalar_type(int(lengths.max()))
        head = np.array([len(lengths)]).tobytes() + bytes([kind.itemsize])
        return np.frombuffer(b"".join([head, lengths.astype(kind).tobytes(), *keys]), np.uint8)

    def unpacked(self, buffer: Array, lengths: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        found, counts = list[bytes](), np.zeros(len(lengths), np.int64)
        for number, (end, length) in enumerate(zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True)):
            message = buffer[end - length : end].tobytes()
            if not message:
                continue
            count, width = int(np.frombuffer(message, np.int64, 1)[0]), message[_HEAD - 1]
            sizes = np.zeros(0, np.int64)
            if width in (1, 2, 4, 8) and 0 < count <= (len(message) - _HEAD) // width:
                sizes = np.frombuffer(message, f"u{width}", count, _HEAD).astype(np.int64)
            if not len(sizes) or (sizes < 0).any() or sizes.sum() != len(message) - _HEAD - count * width:
                problem = f"it tells of {count} strings in {len(message)} bytes"
                raise MalformedMessage(number, len(lengths), problem)
            ends = (np.cumsum(sizes) + _HEAD + count * width).tolist()
            found += [message[start:end] for start, end in pairwise([_HEAD + count * width, *ends])]
            counts[number] = count
        return found, counts

    def distinct(self, keys: list[bytes]) -> tuple[list[bytes], np.ndarray]:
        return ordered(keys)

    def shown(self, keys: list[bytes]) -> np.ndarray:
        found = [key.decode("utf-8", "surrogatepass") for key in keys] if self._kind == STR else keys
        return np.array(found, object)
