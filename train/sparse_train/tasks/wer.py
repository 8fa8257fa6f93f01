"""Word and character error rates: edits that turn what was recognised into what was said, for every word said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Errors(NamedTuple):
    """The errors in a text, and its length."""

    wrong_words: int
    words: int  # said
    wrong_characters: int
    characters: int  # said, with the spaces between words


def errors(said: str, recognised: str) -> Errors:
    """Count the errors in ``recognised``; both texts have single spaces between words."""
    words = said.split()
    return Errors(distance(words, recognised.split()), len(words), distance(said, recognised), len(said))


def distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return Levenshtein's distance: the fewest insertions, deletions, substitutions from one to the other."""
    row = list(range(len(second) + 1))  # from the first i of one to the first j of the other
    for i, mine in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (mine != other))
    return row[-1]
