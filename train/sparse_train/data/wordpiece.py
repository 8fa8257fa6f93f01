"""WordPiece: text as numbered pieces of words, with BERT's special tokens; vocabularies are trained or read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INSIDE = "##"  # begins a piece that does not begin a word
MAX_ALPHABET = 1000  # different characters that a vocabulary is trained with


class Pieces(NamedTuple):
    """A text of T pieces."""

    ids: np.ndarray  # (T,) int32
    spans: np.ndarray  # (T, 2) int32: where a piece begins and ends in the text, in characters


class WordPiece:
    """A tokenizer that cuts text, in lower case and without accents, into the pieces of a vocabulary.

    Args:
        vocabulary: the pieces, each at its number; `SPECIAL` among them.

    Raises:
        ImportError: the package tokenizers is not installed.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self.vocabulary = tuple(vocabulary)
        self.pad, self.unknown, self.cls, self.sep, self.mask = (numbers[piece] for piece in SPECIAL)
        self._tokenizer = _tokenizer(numbers)

    def encode(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the pieces of each text, without special tokens around them."""
        return [
            Pieces(np.array(found.ids, np.int32), np.array(found.offsets, np.int32).reshape(-1, 2))
            for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]


def trained(texts: Iterable[str], size: int) -> list[str]:
    """Train a vocabulary of at most ``size`` pieces, special tokens first; the same ``texts`` give the same pieces.

    Raises:
        ImportError: the package tokenizers is not installed.
        ValueError: ``size`` has no room for the characters of ``texts``.
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


def read(path: Path) -> list[str]:
    """Read the vocabulary in a file like BERT's ``vocab.txt``: a piece a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: special tokens are missing, or pieces come twice.
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
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError:
        raise ImportError("WordPiece needs the package tokenizers: pip install tokenizers") from None
    return BertWordPieceTokenizer(numbers, lowercase=True)
