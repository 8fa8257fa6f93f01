"""Protocols stay small: what an implementer must write, and a reader must know."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter

import pytest

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm.base import MEMBERS, Comm
from sparse_mpi.feedback import Feedback

from .test_layers import LIBRARY, PACKAGE, lines_of_code, tree_of

MOST = {Comm: 15, Feedback: 14, Algorithm: 14}


@pytest.mark.parametrize("protocol", MOST, ids=lambda protocol: protocol.__name__)
def test_a_protocol_has_few_members(protocol):
    members = sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))
    assert len(members) <= MOST[protocol], f"{protocol.__name__} has {len(members)}: {', '.join(members)}"


def test_the_members_that_a_transport_must_have_are_those_of_comm():
    assert len(MEMBERS) == 15 and all(hasattr(Comm, name) for name in MEMBERS)


def classes():
    """All classes of the library: the module and the name of each, and the names of its bases there."""
    found = {}
    for module, file in LIBRARY.items():
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                found[node.name] = module, [ast.unparse(base).partition("[")[0] for base in node.bases]
    return found


def test_no_class_lies_in_several_files():
    """A base class that is a part of one other class, and of nothing else, is a mixin: compose objects instead."""
    found, text = classes(), "\n".join(file.read_text() for file in LIBRARY.values())
    words, defined = Counter(re.findall(r"\w+", text)), Counter(re.findall(r"^class (\w+)", text, re.M))
    for name, (module, bases) in found.items():
        ours = [base for base in bases if base in found]
        assert len(ours) <= 1, f"{module}.{name} has several base classes: {', '.join(ours)}"
        for base in ours:
            heirs = [heir for heir, (_, of) in found.items() if base in of]
            uses = words[base] - defined[base]
            used = found[base][0] == module or len(heirs) > 1 or uses > len(heirs) + 1  # the import of the one heir
            assert used, f"{base} is a part of {module}.{name} alone: make it an object that this has"


def test_no_two_files_have_one_name():
    names = Counter(file.name for file in LIBRARY.values() if file.stem not in ("__init__", "base"))
    assert [name for name, number in names.items() if number > 1] == []


@pytest.mark.parametrize("folder", ["algorithms", "comm", "reduction", "training"])
def test_there_is_a_comment_for_ten_lines_of_code(folder):
    files = [file for name, file in LIBRARY.items() if name.startswith(f"{PACKAGE}.{folder}")]
    comments = sum(
        token.type == tokenize.COMMENT
        for file in files
        for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    )
    assert comments >= 0.1 * sum(map(lines_of_code, files)), f"{comments} comments in {folder}"


def test_public_names_have_a_docstring():
    """A method may have it from the base class, or the protocol, that it implements."""
    nodes = [(name, node) for name, file in LIBRARY.items() for node in ast.walk(tree_of(file))]
    functions = (node for _, node in nodes if isinstance(node, ast.FunctionDef))
    described = {function.name for function in functions if ast.get_docstring(function)}
    for name, node in nodes:
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.FunctionDef, ast.ClassDef))]
        for child in inner if isinstance(node, (ast.Module, ast.ClassDef)) else ():
            public = not child.name.startswith("_") and not getattr(node, "name", "").startswith("_")
            inherited = isinstance(node, ast.ClassDef) and (node.bases or child.name in MEMBERS)
            inherited = inherited and child.name in described
            decorators = " ".join(map(ast.unparse, child.decorator_list))
            second = "overload" in decorators or ".setter" in decorators
            assert not public or second or inherited or ast.get_docstring(child), f"{name}.{child.name}"
