"""``python -m sparse_mpi algorithms``: the table of algorithms, from their docstrings and declared bounds."""

from __future__ import annotations

import argparse
import inspect
import re

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.sparse import Layout

SIZE, DENSITY, RANKS = 14_728_266, 0.01, (4, 64)  # VGG-16's gradient


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "algorithms",
        help="table of all algorithms and what they cost",
        description="Print a Markdown table of every algorithm: what it is, and the most one rank sends in a step.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(table())
    return 0


def table() -> str:
    """The table in Markdown; volumes in units of k(P-1)/P words, which makes them comparable between P."""
    layout, k = Layout.of(SIZE), round(SIZE * DENSITY)
    heads = ["algorithm", "what it is", *(f"words, P = {p}" for p in RANKS), *(f"messages, P = {p}" for p in RANKS)]
    rows = [heads, ["---"] * 2 + ["---:"] * 2 * len(RANKS)]
    for name, cls in ALGORITHMS.items():
        bounds = [cls().bound(layout, k, p) for p in RANKS]
        words = [f"{b.words / (k * (p - 1) / p):,.1f} k(P-1)/P" for b, p in zip(bounds, RANKS, strict=True)]
        rows.append([f"`{name}`", _summary(cls), *words, *(f"{b.messages:.0f}" for b in bounds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _summary(cls: type) -> str:
    """The first sentence of the docstring of the file that defines ``cls``."""
    document = inspect.getdoc(inspect.getmodule(cls)) or ""
    return re.split(r"\.\s", document.replace("\n", " "), maxsplit=1)[0]
