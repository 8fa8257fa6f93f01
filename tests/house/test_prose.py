"""Prose by form: an entry of ``Args:`` begins with a noun, a trailing comment names the thing, genitives have nouns.

python -m tests.house.test_prose             the share of each form that is otherwise, and their places
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .test_layers import tree_of
from .test_size import files_below, shown

FOLDERS = ("sparse_mpi", "bench", "train")
# Prepositions, conjunctions and the words that open a clause
OPENERS = """
    about above according across after against along also although among and around as at because before behind
    below beneath beside besides between beyond but by concerning despite during except for from how if in inside
    into like near nor of on once onto or over past per since so than that though through throughout till to toward
    towards under unless until up upon via what whatever when whenever where wherever whether which while who whom
    whose why with within without
""".split()
SECTION = re.compile(r"^Args:\n((?:(?: .*)?\n)*)", re.M)
ENTRY = re.compile(r"^ {4}[*\w`, ]+(?: \([^)]*\))?:\s+(.*)", re.M)
# Genitives of pronouns in docstrings: "whose", "those of", "of it", "of these" without a noun
GENITIVES = re.compile(
    r"\b(?:whose|(?:that|those|ones) of|of (?:it|them|which|whom))\b"
    r"|\bof (?:this|that|these|those)(?=\s*(?:[,.;:)]|$))",
    re.IGNORECASE,
)
MARKS = re.compile(r"#\s*(noqa|type:|pragma|fmt:|isort:)")  # comments that tools read

Place = tuple[str, str]  # where, and the text


def docstrings(file: Path) -> Iterator[Place]:
    """The docstrings of a file."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{shown(file)} {getattr(node, 'name', '')}", ast.get_docstring(node) or ""


def genitives(file: Path) -> Iterator[Place]:
    """The genitives of pronouns in the docstrings of a file."""
    for where, text in docstrings(file):
        yield from ((where, text[max(found.start() - 30, 0) : found.end() + 20]) for found in GENITIVES.finditer(text))


def entries(file: Path) -> Iterator[Place]:
    """The entries of ``Args:`` in the docstrings of a file."""
    for where, docstring in docstrings(file):
        for section in SECTION.findall(docstring + "\n"):
            yield from ((where, text) for text in ENTRY.findall(section))


def comments(file: Path) -> Iterator[Place]:
    """The comments of a file that stand behind code."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip() and not MARKS.match(token.string):
            yield f"{shown(file)}:{token.start[0]}", token.string.lstrip("#: ")


PRONOUNS = 4  # genitives of pronouns in 1,000 words
FORMS = {"entries of Args": (entries, 4), "trailing comments": (comments, 5)}  # percent that may begin otherwise


def opens(text: str) -> bool:
    return (re.findall(r"[\w']+", text) or [""])[0].lower() in OPENERS


def found(places: Callable[[Path], Iterator[Place]], *folders: str) -> tuple[list[str], int]:
    """The places that begin with an opener, and how many there are in all."""
    every = [place for folder in folders for file in files_below(folder) for place in places(file)]
    return [f"{where}: {text}" for where, text in every if opens(text)], len(every)


def of_pronouns(folder: str) -> tuple[list[str], int]:
    """The genitives of pronouns in the docstrings of a folder, and their words."""
    files = files_below(folder)
    words = sum(len(text.split()) for file in files for _, text in docstrings(file))
    return [f"{where}: {text!r}" for file in files for where, text in genitives(file)], words


@pytest.mark.parametrize("folder", FOLDERS)
def test_genitives_have_nouns(folder):
    bad, words = of_pronouns(folder)
    assert 1000 * len(bad) <= PRONOUNS * words, f"{len(bad)} in {words} words:\n" + "\n".join(bad)


@pytest.mark.parametrize("form", FORMS)
def test_prose_begins_with_a_noun(form):
    places, percent = FORMS[form]
    for folder in FOLDERS:
        bad, number = found(places, folder)
        assert 100 * len(bad) <= percent * number, f"{len(bad)} of {number} {form}:\n" + "\n".join(bad)


def test_all_forms_are_seen(monkeypatch, tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        'def f(a, b):\n    """F of it.\n\n    Args:\n        a: of b.\n        b: a\n    """\n    a  # if b\n    # of\n'
    )
    monkeypatch.setattr(f"{__name__}.shown", str)
    assert [text for places, _ in FORMS.values() for _, text in places(file)] == ["of b.", "a", "if b"]
    assert [text for _, text in genitives(file)] == ["F of it.\n\nArgs:\n    a: of b"]


if __name__ == "__main__":
    for folder in FOLDERS:
        bad, words = of_pronouns(folder)
        print(*bad, f"{1000 * len(bad) / words:.1f} genitives of pronouns in 1,000 words of {folder}\n", sep="\n")
    for form, (places, percent) in FORMS.items():
        bad, number = found(places, *FOLDERS)
        print(
            *bad,
            f"{len(bad)} of {number} {form} ({100 * len(bad) / number:.1f} %; {percent} % are allowed)\n",
            sep="\n",
        )
