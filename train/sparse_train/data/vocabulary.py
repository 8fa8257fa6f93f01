"""Vocabularies, which turn a text into numbers from 0: bytes, words, or pairs of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from io import StringIO
from itertools import islice
from typing import Any, Protocol

import numpy as np

UNKNOWN, END = "<unk>", "<eos>"  # a word that is not in the vocabulary, and the end of a line
BYTES = 256
LINES = 10_000  # tokenised together; bounds memory only


class Vocabulary(Protocol):
    """Tokens and their numbers."""

    size: int

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of ``text``: (T,) int32, each in [0, size)."""

    def decode(self, tokens: np.ndarray) -> str:
        """Return a text that ``tokens`` stand for."""


class Bytes:
    """The 256 bytes of UTF-8."""

    size = BYTES

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of ``text``, see `Vocabulary`."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of ``tokens``; bytes that are no UTF-8 become replacement characters."""
        return bytes(tokens.astype(np.uint8)).decode(errors="replace")


class Words:
    """The words of a text, with ``<eos>`` at the end of every line and ``<unk>`` for all other words.

    Words that occur once are left out: without them there would be nothing to learn about ``<unk>``. WikiText has none.

    Args:
        text: to train on.
        most: how many tokens to have at most, with ``<unk>`` and ``<eos>``; the most frequent words are taken.
        split: the words of a line.
    """

    def __init__(self, text: str, most: int, split: Callable[[str], Sequence[str]] = str.split) -> None:
        self._split = split
        counts = Counter(word for line in StringIO(text) for word in split(line))
        often = sorted((w for w in counts if counts[w] > 1 and w not in (UNKNOWN, END)), key=lambda w: (-counts[w], w))
        self._words = [UNKNOWN, END, *often[: max(0, most - 2)]]
        self._numbers = {word: number for number, word in enumerate(self._words)}
        self.size = len(self._words)

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of ``text``, see `Vocabulary`."""
        words = (word for line in StringIO(text) for word in (*self._split(line), END))
        return np.fromiter((self._numbers.get(word, 0) for word in words), np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of ``tokens``, with spaces between the words."""
        lines = " ".join(self._words[token] for token in tokens).split(END)
        return "\n".join(line.strip() for line in lines)


class BytePairs:
    """The vocabulary of GPT-2: bytes, and those pairs of tokens that occurred most, merged one after the other.

    Args:
        description: what `train_byte_pairs` returned.

    Raises:
        ImportError: the package tokenizers is not installed.
    """

    def __init__(self, description: str) -> None:
        self._tokenizer = _tokenizers().Tokenizer.from_str(description)
        self.size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of ``text``, see `Vocabulary`."""
        parts = [np.zeros(0, np.int32)]
        for lines in _batches(text):
            encoded = self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)
            parts += [np.array(line.ids, np.int32) for line in encoded]
        return np.concatenate(parts)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of ``tokens``, see `Vocabulary`."""
        return self._tokenizer.decode(tokens.tolist())


def train_byte_pairs(text: str, most: int) -> str:
    """Train a vocabulary of at most ``most`` tokens on ``text``; return it as JSON.

    Raises:
        ImportError: the package tokenizers is not installed.
        ValueError: ``most`` leaves no room for all bytes.
    """
    if most < BYTES:
        raise ValueError(f"vocabulary must be at least {BYTES}, the bytes there are, got {most}")
    package = _tokenizers()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=most, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_batches(text), trainer)
    return tokenizer.to_str()


def _batches(text: str) -> Iterator[list[str]]:
    """Yield the lines of ``text`` with their line ends, `LINES` at a time."""
    lines = StringIO(text)
    while batch := list(islice(lines, LINES)):
        yield batch


def _tokenizers() -> Any:
    try:
        return import_module("tokenizers")
    except ImportError:
        raise ImportError("pairs of bytes need the package tokenizers: pip install tokenizers") from None
