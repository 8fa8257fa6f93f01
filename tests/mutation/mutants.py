"""Small wrong changes to the library, drawn at random from a seed: what a suite worth its name must notice.

A mutant changes one place of one file: a comparison, an operator, a constant, a condition, or a statement that goes.
Messages of errors, annotations and docstrings are left alone: nobody's gradient depends on them.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# How many mutants of each folder: about as many as it has decisions
SHARES = {"algorithms": 38, "select": 18, "wire": 14, "comm": 22, "feedback": 12}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


class Mutant(NamedTuple):
    """One change of one file: the characters from ``start`` to ``stop`` of it become ``new``."""

    file: str  # relative to the repository
    line: int
    start: int
    stop: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Where it is and what it changes, on one line."""
        return f"{self.file}:{self.line}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"

    def applied(self) -> str:
        """Return the text of the file with the change made."""
        text = (ROOT / self.file).read_text()
        assert text[self.start : self.stop] == self.old, f"{self.file} has changed since the mutants were drawn"
        return text[: self.start] + self.new + text[self.stop :]


def draw(seed: int, shares: dict[str, int] = SHARES) -> list[Mutant]:
    """Draw so many mutants of each folder, the same for the same sources and seed, and no two of one line."""
    drawn: list[Mutant] = []
    for folder, count in shares.items():
        found = [mutant for file in sorted((ROOT / "sparse_mpi" / folder).rglob("*.py")) for mutant in mutants(file)]
        random.Random(f"{seed} {folder}").shuffle(found)
        lines: set[tuple[str, int]] = set()
        for mutant in found:
            if len(lines) < count and (mutant.file, mutant.line) not in lines:
                lines.add((mutant.file, mutant.line))
                drawn.append(mutant)
    return drawn


def mutants(file: Path) -> list[Mutant]:
    """Return every mutant of a file, in the order of their places."""
    source = file.read_text()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def at(line: int, column: int) -> int:
        """Return the place of a character; columns count the bytes of UTF-8."""
        text = source[begins[line - 1] : begins[line]]
        return begins[line - 1] + len(text.encode()[:column].decode())

    found = []
    for node, changed in _changes(ast.parse(source)):
        start, stop = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        new = ast.unparse(changed)
        new = f"({new})" if isinstance(changed, ast.expr) else new
        found.append(Mutant(file.relative_to(ROOT).as_posix(), node.lineno, start, stop, source[start:stop], new))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.stop, mutant.new))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Yield the nodes that may change, each with what it becomes."""
    for node in _walk(tree):
        match node:
            case ast.Compare(left, [op], right):
                yield node, ast.Compare(left, [COMPARISONS[type(op)]()], right)
            case ast.BinOp(left, op, right) if type(op) in OPERATORS:
                yield node, ast.BinOp(left, OPERATORS[type(op)](), right)
            case ast.BoolOp(op, values):
                yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
                yield node, operand
            case ast.Constant(bool(value)):
                yield node, ast.Constant(not value)
            case ast.Constant(int(value)):
                yield node, ast.Constant(value + 1)
            case ast.Constant(float(value)):
                yield node, ast.Constant(2 * value + 1)
            case ast.If(test) | ast.IfExp(test):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.AugAssign() | ast.Expr():
                yield node, ast.Pass()


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose change is a change of behaviour."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom)):
        return  # a docstring, or what a generator is made of
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "field":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)
