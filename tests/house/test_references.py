"""Docstrings and comments name files, and things in backticks, that there are."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from .test_layers import ROOT, shown, tree_of

FOLDERS = ("sparse_mpi", "bench", "train", "runs", "examples", "slurm", "reframe", "tests")
SOURCES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in FOLDERS}
FILE = r"(?<![\w/*.<-])[\w/-]*\w\.(?:py|cu|md|sh)\b(?![\w.(])"
NAME = r"(?<!`)`([A-Za-z]\w+(?:\.\w+)*)`(?!`)"
# What belongs to other programs, to languages but Python, or to whoever reads
FOREIGN = {"time", "torch", "numpy", "scipy", "boost_histogram", "transformers", "lightning", "psutil", "re"}
FOREIGN |= {"print", "Allreduce", "parametrize", "ip", "mpirun", "cvt", "setp", "metrics.jsonl"}
EVERYTHING, FUNCTIONS = "", "()"
EXAMPLES = {"program.py", "PROGRAM.py", "train.py", "file.py", "a.py", "common.cu", "site.py"}


@cache
def files() -> frozenset[str]:
    below = [file for folder in (*FOLDERS, "docs", "packaging", "pbs") for file in (ROOT / folder).rglob("*")]
    return frozenset(file.name for file in [*below, *ROOT.iterdir()])


class Facts(NamedTuple):
    """What references are looked up in, and where they stand, of one file."""

    names: frozenset[str]  # what it defines, imports or asks for, and its words in quotes: options, fields of records
    classes: frozenset[str]
    functions: frozenset[str]  # of its top
    prose: list[str]  # docstrings, and comments


@cache
def facts(file: Path) -> Facts:
    names, classes, prose = set[str](), set[str](), list[str]()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            prose.append(ast.get_docstring(node) or "")
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
            classes |= {node.name} if isinstance(node, ast.ClassDef) else set()
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.arg)):
            names.add(node.attr if isinstance(node, ast.Attribute) else node.arg)
        elif isinstance(node, ast.alias):
            names.update((node.asname or node.name).split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    if re.search(f"#.*(?:{FILE}|`)", source := file.read_text()):  # to tokenize takes long
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        prose += [token.string for token in tokens if token.type == tokenize.COMMENT]
    functions = (node.name for node in tree_of(file).body if isinstance(node, ast.FunctionDef))
    return Facts(frozenset(names), frozenset(classes), frozenset(functions), prose)


@cache
def known(folder: str) -> dict[str, set[str]]:
    """What is found behind a name with a dot: of a module, a folder or a class of ``folder`` or of the library."""
    found = defaultdict(set)
    others = ["sparse_mpi"] if folder == "sparse_mpi" else ["sparse_mpi", "bench"]
    for file in {file for each in (folder, *others) for file in SOURCES[each]}:
        places = {file.stem, *file.relative_to(ROOT).parent.parts}
        for place in (EVERYTHING, *places, *facts(file).classes):
            found[place] |= facts(file).names | facts(file).classes | places
        found[FUNCTIONS] |= facts(file).functions
    return found


def lost(folder: str, text: str, own: frozenset[str]) -> list[str]:
    """The references of a text of ``folder`` that lead nowhere; ``own`` are the names of its file."""
    wrong = [name for name in re.findall(FILE, text) if Path(name).name not in files() | EXAMPLES | FOREIGN]
    below = known(folder)
    for name in re.findall(NAME, text):
        first, *others = name.split(".")
        if re.fullmatch(FILE, name) or {first, name} & FOREIGN or others[-1:] in (["svg"], ["json"]):
            continue
        there = first in below and all(other in below[first] for other in others)
        if not others:
            there = name in below[EVERYTHING] or name in own
        elif first not in below and first in own | below[FUNCTIONS]:  # a variable, a module of another package
            there = all(other in below[EVERYTHING] for other in others)
        wrong += [] if there else [name]
    return wrong


@pytest.mark.parametrize(
    "folder", [*FOLDERS[:-1], pytest.param("tests", marks=pytest.mark.full("as long as all others"))]
)
def test_what_docstrings_and_comments_name_is_there(folder):
    wrong = {
        shown(file): found
        for file in SOURCES[folder]
        if (found := [name for text in facts(file).prose for name in lost(folder, text, facts(file).names)])
    }
    assert not wrong


def test_a_reference_that_leads_nowhere_is_seen():
    text = "See `output.Sieve`, `keyed.allreduce`, stale.py, `engine.no_such`; `Engine.attempt`, `arrays`, oktopk.py"
    wrong = ["stale.py", "output.Sieve", "keyed.allreduce", "engine.no_such"]
    assert lost("sparse_mpi", text, frozenset()) == wrong
