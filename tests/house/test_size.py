"""How much there is: by the table ``sizes`` of ``ratchet.json`` it may only fall, but for the room of `ratchet`.

    python -m tests.house.test_size              what there is, and what was there at the last release
    python -m tests.house.test_size --lower      at a release: lower the table to what there is, and add new folders

A row of a folder counts lines of Python as ``wc -l`` does, and has room for 60 at least. A file of an algorithm, a
selector or a message format that was not there at the last release is counted beside the rows, with the tests that are
named for it, until the next one.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from .ratchet import FILE, Ratchet
from .test_layers import PACKAGE, ROOT, tree_of

# Files whose constants stand behind a class or a function, and why
CONSTANTS_BEHIND: dict[str, str] = {}
PAGES = ("README.md", "CONTRIBUTING.md", "REPRODUCE.md", "CHANGELOG.md")
NO_FOLDERS = ("words of", "Any", "class names", "files with")  # rows of lines begin otherwise
LEAST = 60  # lines of room
KINDS = ("algorithms", "select", "wire")  # folders of parts
MOST_NEW = 250  # lines of a new part, and of its tests
SIZES = Ratchet("sizes", "tests.house.test_size", lambda row: 0 if row.startswith(NO_FOLDERS) else LEAST)


def lines(file: Path) -> int:
    return file.read_text().count("\n")


def files_below(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def core() -> list[Path]:
    """The files of the library without those of contrib and testing."""
    beside = {ROOT / PACKAGE / "contrib", ROOT / PACKAGE / "testing"}
    return [file for file in files_below(PACKAGE) if not beside & set(file.parents)]


def words_of_docstrings(file: Path) -> int:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree_of(file)) if isinstance(node, kinds)]
    return sum(len((ast.get_docstring(node) or "").split()) for node in nodes)


def names_of_classes() -> Counter[str]:
    """How many files have a class of each name."""
    classes = [{node.name for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)} for file in core()]
    return Counter(name for names in classes for name in names)


def constants_behind(tree: ast.Module) -> Iterator[str]:
    """The constants behind the first class or function of a file, but those that are made of what stands there."""
    made: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and made:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if made & used:
                made.update(names)
            else:
                yield from (name for name in names if re.fullmatch(r"_?[A-Z][A-Z\d_]+", name))


def parts() -> list[Path]:
    """The files of algorithms, selectors and message formats."""
    return [file for kind in KINDS for file in files_below(f"{PACKAGE}/{kind}")]


def own_tests(part: Path) -> list[Path]:
    """The file named for a part, if there is one."""
    file = ROOT / "tests" / part.relative_to(ROOT / PACKAGE).parts[0] / f"test_{part.stem}.py"
    return [file] if file.exists() else []


@cache
def new() -> frozenset[Path]:
    """The files of parts that were not there at the last release, and of their tests."""
    known = set(json.loads(FILE.read_text())["parts"])
    added = [part for part in parts() if shown(part) not in known]
    return frozenset([*added, *(file for part in added for file in own_tests(part))])


def counts(beside: frozenset[Path] = frozenset()) -> dict[str, Callable[[], int]]:
    """What there is of all that is counted, without the lines, words and ``Any`` of the files ``beside``."""

    def total(files: Iterable[Path]) -> int:
        return sum(lines(file) for file in files if file not in beside)

    def below(folder: str) -> int:
        return total(files_below(folder))

    def counted() -> list[Path]:
        return [file for file in core() if file not in beside]

    def pages() -> list[Path]:
        return [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]

    folders = sorted({file.relative_to(ROOT / PACKAGE).parts[0] for file in files_below(PACKAGE)})
    named = [*(f"{PACKAGE}/{name}" for name in folders if "." not in name), "bench", "train", "tests", "runs"]
    return {
        PACKAGE: lambda: total(core()),
        f"{PACKAGE}/*.py": lambda: total((ROOT / PACKAGE).glob("*.py")),
        **{folder: partial(below, folder) for folder in named},
        "words of pages": lambda: sum(len(page.read_text().split()) for page in pages()),
        "words of docstrings": lambda: sum(map(words_of_docstrings, counted())),
        "Any": lambda: sum(len(re.findall(r"\bAny\b", file.read_text())) for file in counted()),
        "class names that occur twice": lambda: sum(number > 1 for number in names_of_classes().values()),
        "files with a constant behind a class or function": lambda: sum(
            any(constants_behind(tree_of(file))) for file in core() if shown(file) not in CONSTANTS_BEHIND
        ),
    }


def shown(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def which(what: str) -> str:
    """The names and files that a row counts, where it counts few."""
    if what.startswith("class"):
        return " ".join(sorted(name for name, number in names_of_classes().items() if number > 1))
    if what.startswith("files"):
        found = {shown(file): list(constants_behind(tree_of(file))) for file in core()}
        return "; ".join(f"{file}: {' '.join(names)}" for file, names in found.items() if names)
    return ""


@pytest.mark.parametrize("row", counts())
def test_nothing_grows(row):
    SIZES.check(row, counts(new())[row](), which(row))


def test_new_parts_are_short():
    for file in new():
        assert lines(file) <= MOST_NEW, (
            f"{shown(file)}: {lines(file)} lines; a new part may have {MOST_NEW}, as its tests"
        )


def test_exceptions_are_needed_and_have_a_reason():
    for name, reason in CONSTANTS_BEHIND.items():
        assert any(constants_behind(tree_of(ROOT / name))) and len(reason) > 10, name


def test_a_constant_behind_is_seen():
    text = "A = 1\ndef f(): pass\nBB = 2\nC = [f]\nD = C\n_EE: int = 3\nnames = 4\n"
    assert list(constants_behind(ast.parse(text))) == ["BB", "_EE"]


if __name__ == "__main__":
    without, everything = ({row: count() for row, count in counts(beside).items()} for beside in (new(), frozenset()))
    added = {row: everything[row] - without[row] for row in everything}
    SIZES.main(__doc__.splitlines()[0], without, added, [shown(part) for part in parts()])
