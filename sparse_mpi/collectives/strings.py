"""Strings as keys: types, order, and messages to a `Dictionary`.

They are compared in full, never by a checksum. Messages have str as UTF-8, in Python's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.collectives.dictionary import Keys
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import check_consistency
from sparse_mpi.kernels.base import MalformedMessage

Text: TypeAlias = Any  # a str, or bytes
UNKNOWN, INTEGERS, STR, BYTES, WIDE = range(5)  # types of keys; a rank without keys may not know
STRINGS = (STR, BYTES)
NAMES = ("none", "integers", "str", "bytes", "pairs of integers")
LONGEST = 64  # characters of a string that a rank shows to all
_HEAD = 9  # bytes of a message that say how many strings there are, and how wide their lengths; 0 if NUL parts them


def ordered(strings: Sequence[Text]) -> tuple[list[Text], np.ndarray]:
    """Return the distinct strings in order, and the places ``(m,)`` int64 of ``strings`` there."""
    # One sort and no dictionary: of ascending runs, as messages have them, it is a merge.
    order = np.array(sorted(range(len(strings)), key=strings.__getitem__), np.int64)
    found = np.array(strings, object)[order]
    first = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    places = np.empty(len(found), np.int64)
    places[order] = np.cumsum(first) - 1
    return found[first].tolist(), places


def type_of_all(types: np.ndarray, mine: int, comm: Comm) -> int:
    """Return the type of keys on all ranks that know it; all raise ValueError if ``types`` ``(P,)`` differ."""
    known = set(types.tolist()) - {UNKNOWN}
    if len(known) > 1:
        check_consistency(comm, f"keys: {NAMES[mine]}")
    return known.pop() if known else UNKNOWN


class StringKeys(Keys):
    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._nothing: Text = "" if kind == STR else b""
        self._nul: Text = "\0" if kind == STR else b"\0"

    def sample(self, keys: Sequence[Text], places: np.ndarray) -> list[Text]:
        return [keys[place][:LONGEST] for place in places.tolist()]

    def packed(self, keys: Sequence[Text]) -> np.ndarray:
        # How many, the bytes of a length, the lengths, all strings as one; the message of none is empty
        if not len(keys):
            return np.empty(0, np.uint8)
        text, width, lengths = self._nul.join(keys), 0, b""
        if text.count(self._nul) != len(keys) - 1:  # lengths tell strings apart that have NUL themselves
            sizes = np.fromiter(map(len, keys), np.int64, len(keys))
            kind = np.min_scalar_type(int(sizes.max()))
            text, width, lengths = self._nothing.join(keys), kind.itemsize, sizes.astype(kind).tobytes()
        raw = text.encode("utf-8", "surrogatepass") if self._kind == STR else text
        return np.frombuffer(b"".join([np.array([len(keys)]).tobytes(), bytes([width]), lengths, raw]), np.uint8)

    def unpacked(self, buffer: Array, lengths: np.ndarray) -> tuple[list[Text], np.ndarray]:
        found, counts = list[Text](), np.zeros(len(lengths), np.int64)
        for number, (end, length) in enumerate(zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True)):
            message = buffer[end - length : end].tobytes()
            if not message:
                continue
            came = self._strings(message)
            if came is None:
                raise MalformedMessage(
                    number, len(lengths), f"its {len(message)} bytes are not the strings it tells of"
                )
            found += came
            counts[number] = len(came)
        return found, counts

    def distinct(self, keys: list[Text]) -> tuple[list[Text], np.ndarray]:
        return ordered(keys)

    def shown(self, keys: list[Text]) -> np.ndarray:
        return np.array(keys, object)

    def _strings(self, message: bytes) -> list[Text] | None:
        """Return a message's strings; None: damaged."""
        if len(message) < _HEAD:
            return None
        count, width = int(np.frombuffer(message, np.int64, 1)[0]), message[_HEAD - 1]
        if width not in (0, 1, 2, 4, 8) or not 0 < count <= len(message) or _HEAD + count * width > len(message):
            return None
        text: Text = message[_HEAD + count * width :]
        if self._kind == STR:
            try:
                text = text.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                return None
        if not width:
            came = text.split(self._nul)
            return came if len(came) == count else None
        sizes = np.frombuffer(message, f"u{width}", count, _HEAD).astype(np.int64)
        if ((sizes < 0) | (sizes > len(text))).any() or sizes.sum() != len(text):
            return None
        return [text[start:end] for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]
