"""How hard the paragraphs of the pages are to read: `python -m tests.docs.reading` prints the worst ten.

The measure is Flesch and Kincaid's grade, the years of school that a text takes. What is in backticks counts as a word
of one syllable; tables, code and headings are left out, and so are paragraphs of fewer than 25 words.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NamedTuple

from ..launch import ROOT

MOST = 15.0  # the grade that no paragraph may exceed
FEWEST = 25  # words, below which a grade says nothing
WORD = r"[A-Za-z][A-Za-z'-]*|\d[\d.,]*"


class Paragraph(NamedTuple):
    """A paragraph or an item of a list, and how hard it is."""

    grade: float
    longest: int  # words of its longest sentence
    page: str
    text: str


def paragraphs() -> list[Paragraph]:
    """Return the paragraphs of all pages but records, the hardest first."""
    pages = [
        "README.md",
        "CONTRIBUTING.md",
        "REPRODUCE.md",
        *(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")),
    ]
    found = [
        Paragraph(*measured, page, text)
        for page in pages
        if not page.startswith("docs/results/")
        for text in prose((ROOT / page).read_text())
        if (measured := measure(text))
    ]
    return sorted(found, reverse=True)


def prose(page: str) -> Iterator[str]:
    """Yield the paragraphs, and the items of lists."""
    page = re.sub(r"^( *)(```|~~~|:::).*?^\1\2", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", page):
        for text in re.split(r"\n(?=- |\d+\. )", block.strip("\n")):
            if not text.startswith(("    ", "|", "#", "!", "<", "(")):
                yield text


def measure(text: str) -> tuple[float, int] | None:
    """Return grade and longest sentence; None for a text of few words."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"[*_]", "", text)
    sentences = [words for part in re.split(r"[.!?]\)?\s+(?=[A-Z\d\"(])", text) if (words := re.findall(WORD, part))]
    words = [word for sentence in sentences for word in sentence]
    if len(words) < FEWEST:
        return None
    grade = 0.39 * len(words) / len(sentences) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59
    return round(grade, 1), max(map(len, sentences))


def syllables(word: str) -> int:
    """Return about how many there are; one for a number."""
    word = word.lower()
    silent = len(word) > 2 and word.endswith("e") and not word.endswith("le")
    return max(1, len(re.findall(r"[aeiouy]+", word)) - silent)


def main() -> None:
    """Print the hardest paragraphs."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.reading", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10, metavar="N", help="how many (default: 10)")
    found = paragraphs()
    for grade, longest, page, text in found[: parser.parse_args().count]:
        print(f"grade {grade}, longest sentence {longest} words, {page}\n{text}\n")
    print(f"median of {len(found)} paragraphs: grade {found[len(found) // 2].grade}")


if __name__ == "__main__":
    main()
