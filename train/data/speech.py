"""What a data set of speech is: clips of sound with what is said in them, written in 28 characters."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

BLANK = "_"  # nothing, or the end of a character, of CTC; code 0
ALPHABET = BLANK + "'ABCDEFGHIJKLMNOPQRSTUVWXYZ "
_CODES = {character: code for code, character in enumerate(ALPHABET)}


class Clip(NamedTuple):
    """An utterance."""

    samples: np.ndarray  # (N,) int16
    rate: int  # samples a second
    text: str  # of the characters of `ALPHABET`, without blanks


class Speech(NamedTuple):
    """A data set of speech, the same on all ranks."""

    train: tuple[Clip, ...]
    test: tuple[Clip, ...]


def written(text: str) -> str:
    """``text`` in capitals, words apart by one space, without what `ALPHABET` does not have."""
    return " ".join(re.sub("[^A-Z']", " ", text.upper()).split())


def encode(text: str) -> np.ndarray:
    """The codes of the characters of ``text``: ``(len(text),)`` int64.

    Raises:
        KeyError: one that is not in `ALPHABET`.
    """
    return np.array([_CODES[character] for character in text], np.int64)


def decode(codes: np.ndarray) -> str:
    """The text of codes as `encode` makes them."""
    return "".join(ALPHABET[code] for code in codes)
