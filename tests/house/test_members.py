"""Protocols stay small: what an implementer must write, and a reader must know."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections import Counter

import pytest

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.comm.base import MEMBERS, Comm
from sparse_mpi.feedback import Feedback
from sparse_mpi.wire import Wire
from sparse_mpi.wire.codecs import Codec

from .test_layers import LIBRARY, PACKAGE, ROOT, tree_of

MOST = {Comm: 15, Feedback: 10, Algorithm: 14}
# What users import from
DOORS = "algorithms checkpoint collectives comm ddp fault_tolerance feedback fsdp optim reduction select wire".split()
DOORS += ["testing"]
BESIDE, TEXT = ("bench", "train", "tests", "examples", "docs", "runs"), (".py", ".md", ".ipynb")


@pytest.mark.parametrize("protocol", MOST, ids=lambda protocol: protocol.__name__)
def test_a_protocol_has_few_members(protocol):
    members = sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))
    assert len(members) <= MOST[protocol], f"{protocol.__name__} has {len(members)}: {', '.join(members)}"


def test_the_members_that_a_transport_must_have_are_those_of_comm():
    assert len(MEMBERS) == 14 and all(hasattr(Comm, name) for name in MEMBERS)


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
    bench = (ROOT / "bench").rglob("*.py")  # its classes may derive from ours
    found, text = classes(), "\n".join(file.read_text() for file in [*LIBRARY.values(), *bench])
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
    of_each = ("__init__", "base", "command", "options")  # which folders have one of: interface and command line
    names = Counter(file.name for file in LIBRARY.values() if file.stem not in of_each)
    assert [name for name, number in names.items() if number > 1] == []


@pytest.mark.parametrize("door", [PACKAGE, *(f"{PACKAGE}.{name}" for name in DOORS)])
def test_the_public_api_has_docstrings(door):
    """A method may have its docstring from a base class or from the protocol that it is of."""
    module, of_protocols = pytest.importorskip(door, exc_type=ImportError), {*MEMBERS, *vars(Codec), *vars(Wire)}
    for name, thing in ((name, getattr(module, name)) for name in module.__all__):
        if isinstance(thing, (type, types.FunctionType)) and thing.__module__.startswith(PACKAGE):
            members = vars(thing) if isinstance(thing, type) else {}
            functions = (types.FunctionType, property, classmethod, staticmethod)
            own = [member for member, value in members.items() if isinstance(value, functions) and member[0] != "_"]
            bare = [
                member for member in own if not inspect.getdoc(getattr(thing, member)) and member not in of_protocols
            ]
            assert inspect.getdoc(thing) and not bare, f"{name}: {bare}"


def test_a_public_name_is_used_elsewhere():
    """A function or class that only its own file names is private, or goes."""
    files = [
        *LIBRARY.values(),
        *(file for folder in BESIDE for file in (ROOT / folder).rglob("*") if file.suffix in TEXT),
    ]
    words = {file: set(re.findall(r"\w+", file.read_text())) for file in [*files, ROOT / "README.md"]}
    counts = Counter(word for found in words.values() for word in found)
    alone = [
        f"{module}.{node.name}"
        for module, file in LIBRARY.items()
        for node in tree_of(file).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_" and counts[node.name] == 1
    ]
    assert alone == []
