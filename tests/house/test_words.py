"""Fillers in docstrings and comments: at most two more than in a folder's row of ``ratchet.json``, which may only fall.

    python -m tests.house.test_words              the number of each folder, and that of the last release
    python -m tests.house.test_words --lower      at a release: lower the table to today's numbers

A filler stands where a noun is missing ("what it was told"). Names in backquotes and examples are not counted.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from .ratchet import Ratchet
from .test_layers import PACKAGE, ROOT, tree_of
from .test_size import files_below, shown

FILLERS = re.compile(r"\b(what|those|such|(?:so|as)\s+many|told|came|kept|found|mine|nobody|as\s+ever)\b", re.I)
NOT_PROSE = re.compile(r"``.*?``|`[^`\n]*`|^ *>>> .*?$", re.S | re.M)
LEAST = 2  # fillers of room
FILLED = Ratchet("fillers", "tests.house.test_words", lambda row: LEAST)


def prose(text: str, tree: ast.AST) -> list[str]:
    """The docstrings and comments of a file, without names in backquotes and examples."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [NOT_PROSE.sub("", each) for each in (*docstrings, "\n".join(comments))]


def fillers(text: str, tree: ast.AST) -> Counter[str]:
    return Counter(" ".join(word.lower().split()) for each in prose(text, tree) for word in FILLERS.findall(each))


def folder_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    if parts[0] != PACKAGE:
        return parts[0]
    return f"{PACKAGE}/*.py" if len(parts) == 2 else "/".join(parts[:2])


@cache
def by_folder() -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for file in (file for folder in (PACKAGE, "bench", "train", "runs") for file in files_below(folder)):
        counts.setdefault(folder_of(file), Counter()).update(fillers(file.read_text(), tree_of(file)))
    return counts


def places(folder: str) -> str:
    """The files of a folder with fillers, most first."""
    files = files_below(folder) if not folder.endswith("*.py") else sorted((ROOT / PACKAGE).glob("*.py"))
    numbers = {shown(file): sum(fillers(file.read_text(), tree_of(file)).values()) for file in files}
    return ", ".join(f"{file} {number}" for file, number in sorted(numbers.items(), key=lambda it: -it[1]) if number)


@pytest.mark.parametrize("folder", sorted(by_folder()))
def test_fillers_do_not_grow(folder):
    FILLED.check(folder, by_folder()[folder].total(), places(folder))


def test_fillers_are_counted():
    text = (
        '"""What they told\nus, so\nmany times."""\n# such ``as many`` and `found`\ndef found():\n    """Of what."""\n'
    )
    assert fillers(text, ast.parse(text)) == {"what": 2, "told": 1, "so many": 1, "such": 1}


if __name__ == "__main__":
    FILLED.main(__doc__.splitlines()[0], {folder: words.total() for folder, words in sorted(by_folder().items())}, {})
    print(", ".join(f"{word} {number}" for word, number in sum(by_folder().values(), Counter()).most_common()))
