"""Data sets of speech: clips of sound with their texts, written in 28 characters."""

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
    """Return ``text`` in capitals, with single spaces between words, without characters that `ALPHABET` lacks."""
    return " ".join(re.sub("[^A-Z']", " ", text.upper()).split())


def encode(text: str) -> np.ndarray:
    """Return the codes of the characters of ``text``: ``(len(text),)`` int64.

    Raises:
        KeyError: one that is not in `ALPHABET`.
    """
    return np.array([_CODES[character] for character in text], np.int64)


def decode(codes: np.ndarray) -> str:
    """Return the text from which `encode` makes these codes."""
    return "".join(ALPHABET[code] for code in codes)
