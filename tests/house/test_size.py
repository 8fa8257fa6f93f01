"""How much there is. These numbers may only fall; what a folder may hold is decided in its row.

    python -m tests.house.test_size              what there is, what is allowed, and what could be lowered
    python -m tests.house.test_size --lower      lower the table of this file to what there is

A row of a folder counts lines of Python as ``wc -l`` does.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .ratchet import main
from .test_layers import PACKAGE, ROOT, tree_of

SIZES = {
    "sparse_mpi": 29_328,
    "sparse_mpi/*.py": 1_269,
    "sparse_mpi/algorithms": 3_575,
    "sparse_mpi/checkpoint": 505,
    "sparse_mpi/cli": 1_317,
    "sparse_mpi/collectives": 1_999,
    "sparse_mpi/comm": 4_630,
    "sparse_mpi/contrib": 1_128,
    "sparse_mpi/fault_tolerance": 807,
    "sparse_mpi/feedback": 555,
    "sparse_mpi/integrations": 261,
    "sparse_mpi/kernels": 4_389,
    "sparse_mpi/monitor": 489,
    "sparse_mpi/planning": 302,
    "sparse_mpi/predict": 1_193,
    "sparse_mpi/reduction": 1_953,
    "sparse_mpi/select": 941,
    "sparse_mpi/testing": 677,
    "sparse_mpi/training": 4_043,
    "sparse_mpi/wire": 1_100,
    "bench": 6_253,
    "train": 7_203,
    "tests": 47_272,
    "runs": 2_808,
    "words of pages": 31_918,
    "words of docstrings": 43_728,
    "Any": 662,
    "class names that occur twice": 0,
    "files with a constant behind a class or function": 0,
}
# Files whose constants stand behind a class or a function, and why
CONSTANTS_BEHIND: dict[str, str] = {}
PAGES = ("README.md", "CONTRIBUTING.md", "REPRODUCE.md", "CHANGELOG.md")


def lines(*files: Path) -> int:
    return sum(file.read_text().count("\n") for file in files)


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


@cache
def measured() -> dict[str, int]:
    """What there is of all that is counted."""
    folders = sorted({file.relative_to(ROOT / PACKAGE).parts[0] for file in files_below(PACKAGE)})
    rows = {PACKAGE: lines(*core()), f"{PACKAGE}/*.py": lines(*(ROOT / PACKAGE).glob("*.py"))}
    rows |= {f"{PACKAGE}/{name}": lines(*files_below(f"{PACKAGE}/{name}")) for name in folders if "." not in name}
    rows |= {name: lines(*files_below(name)) for name in ("bench", "train", "tests", "runs")}
    pages = [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts = {file: file.read_text() for file in core()}
    return rows | {
        "words of pages": sum(len(page.read_text().split()) for page in pages),
        "words of docstrings": sum(map(words_of_docstrings, texts)),
        "Any": sum(len(re.findall(r"\bAny\b", text)) for text in texts.values()),
        "class names that occur twice": sum(number > 1 for number in names_of_classes().values()),
        "files with a constant behind a class or function": sum(
            any(constants_behind(tree_of(file))) for file in texts if shown(file) not in CONSTANTS_BEHIND
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


def test_every_folder_has_a_row():
    assert set(measured()) <= set(SIZES)


@pytest.mark.parametrize("what", SIZES)
def test_nothing_grows(what):
    found = measured().get(what, 0)
    assert found <= SIZES[what], f"{what}: {found:,}, at most {SIZES[what]:,}; {which(what)}"


def test_exceptions_are_needed_and_have_a_reason():
    for name, reason in CONSTANTS_BEHIND.items():
        assert any(constants_behind(tree_of(ROOT / name))) and len(reason) > 10, name


def test_a_constant_behind_is_seen():
    text = "A = 1\ndef f(): pass\nBB = 2\nC = [f]\nD = C\n_EE: int = 3\nnames = 4\n"
    assert list(constants_behind(ast.parse(text))) == ["BB", "_EE"]


if __name__ == "__main__":
    main("tests.house.test_size", Path(__file__), SIZES, measured(), __doc__.splitlines()[0])
