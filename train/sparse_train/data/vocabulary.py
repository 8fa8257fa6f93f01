"""Vocabularies, which turn a text into numbers from 0: bytes, words, pairs of bytes, or pieces of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparse_train.packages import needed

UNKNOWN, END = "<unk>", "<eos>"  # a word that is not in the vocabulary, and the end of a line
BYTES = 256
LINES = 10_000  # tokenised together; bounds memory only
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INSIDE = "##"  # begins a piece that does not begin a word
MAX_ALPHABET = 1000  # different characters that a vocabulary is train_pieces with


class Bytes:
    size = BYTES

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class Words:
    """The words of a text, with ``<eos>`` at the end of every line and ``<unk>`` for all other words.

    Words that occur once are left out: without them there would be nothing to learn about ``<unk>``. WikiText has none.

    Args:
        text: training text.
        most: the most tokens, with ``<unk>`` and ``<eos>``; the most frequent words are taken.
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
        words = (word for line in StringIO(text) for word in (*self._split(line), END))
        return np.fromiter((self._numbers.get(word, 0) for word in words), np.int32)


class BytePairs:
    """The vocabulary of GPT-2: bytes, and the most frequent pairs of tokens, merged one after the other.

    Args:
        description: the result of `train_byte_pairs`.

    Raises ImportError: the package tokenizers is not installed.
    """

    def __init__(self, description: str) -> None:
        self._tokenizer = needed("tokenizers", "a vocabulary of byte pairs").Tokenizer.from_str(description)
        self.size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        parts = [np.zeros(0, np.int32)]
        for lines in _batches(text):
            encoded = self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)
            parts += [np.array(line.ids, np.int32) for line in encoded]
        return np.concatenate(parts)


Vocabulary = Bytes | Words | BytePairs


def train_byte_pairs(text: str, most: int) -> str:
    """Train a vocabulary of at most ``most`` tokens on ``text``; return it as JSON.

    Raises ImportError: the package tokenizers is not installed; ValueError: ``most`` leaves no room for all bytes.
    """
    if most < BYTES:
        raise ValueError(f"vocabulary must be at least {BYTES}, the bytes there are, got {most}")
    package = needed("tokenizers", "a vocabulary of byte pairs")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=most, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_batches(text), trainer)
    return tokenizer.to_str()


def _batches(text: str) -> Iterator[list[str]]:
    lines = StringIO(text)
    while batch := list(islice(lines, LINES)):
        yield batch


class Pieces(NamedTuple):
    ids: np.ndarray  # (T,) int32
    spans: np.ndarray  # (T, 2) int32: where a piece begins and ends in the text, in characters


class WordPiece:
    """A tokenizer that cuts text, in lower case and without accents, into the pieces of a vocabulary.

    Args:
        vocabulary: the pieces, each at its number; `SPECIAL` among them.

    Raises ImportError: the package tokenizers is not installed.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self.vocabulary = tuple(vocabulary)
        self.pad, self.unknown, self.cls, self.sep, self.mask = (numbers[piece] for piece in SPECIAL)
        self._tokenizer = _tokenizer(numbers)

    def encode(self, texts: Sequence[str]) -> list[Pieces]:
        return [
            Pieces(np.array(found.ids, np.int32), np.array(found.offsets, np.int32).reshape(-1, 2))
            for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]


def train_pieces(texts: Iterable[str], size: int) -> list[str]:
    """Train a vocabulary of at most ``size`` pieces, special tokens first; the same ``texts`` give the same pieces.

    Raises ImportError: the package tokenizers is not installed; ValueError: ``size`` has no room for the characters of
    ``texts``.
    """
    tokenizer = _tokenizer(None)
    normal = [tokenizer.normalize(text) for text in texts]
    counts: Counter[str] = Counter()
    for text in normal:
        counts.update(text)
    rare = {ord(c): " " for c in sorted(counts, key=lambda c: (-counts[c], c))[MAX_ALPHABET:]}
    normal = [text.translate(rare) for text in normal]

    def pieces(special: Sequence[str], room: int) -> set[str]:
        options: dict[str, Any] = {"special_tokens": list(special), "show_progress": False}
        tokenizer.train_from_iterator(normal, vocab_size=room, min_frequency=2, **options)
        return set(tokenizer.get_vocab())

    # The trainer numbers characters inside words as its hash table has them, and breaks ties by these numbers.
    # Number them beforehand, or vocabularies would differ from run to run.
    inside = sorted(piece for piece in pieces(SPECIAL, 0) if piece.startswith(INSIDE))
    found = pieces([*SPECIAL, *inside], size)
    if len(found) > size:
        raise ValueError(f"a vocabulary must have room for all {len(found)} characters of the text, got {size}")
    return [*SPECIAL, *sorted(found.difference(SPECIAL))]


def read_pieces(path: Path) -> list[str]:
    """Read the vocabulary in a file like BERT's ``vocab.txt``: a piece a line.

    Raises FileNotFoundError: the file is missing; ValueError: special tokens are missing, or pieces come twice.
    """
    try:
        pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no vocabulary {path}; expected a file with a piece of WordPiece a line, such as the vocab.txt that "
            "train/bert.py leaves in its --out"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); expected a piece of WordPiece a line") from None
    if missing := set(SPECIAL).difference(pieces):
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; expected a piece of WordPiece a line")
    if len(set(pieces)) != len(pieces):
        twice, _ = Counter(pieces).most_common(1)[0]
        raise ValueError(f"{path} has the piece {twice!r} more than once; a piece has one number, its line")
    return pieces


def _tokenizer(numbers: dict[str, int] | None) -> Any:
    package = needed("tokenizers", "WordPiece")
    return package.BertWordPieceTokenizer(numbers, lowercase=True)
