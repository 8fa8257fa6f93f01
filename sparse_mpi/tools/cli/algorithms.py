"""``python -m sparse_mpi algorithms``: the table of algorithms, from their docstrings and declared bounds."""

from __future__ import annotations

import argparse
import inspect
import re

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import vgg16
from sparse_mpi.tools.cli import markdown

DENSITY, RANKS = 0.01, (4, 64)


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
    """Return the table in Markdown.

    The declared bounds are for VGG-16's gradient, in units of k(P-1)/P words, which are
    comparable between numbers of ranks.
    """
    layout = Layout.of([shape for _, shape in vgg16()])
    k = round(layout.size * DENSITY)
    heads = ["algorithm", "what it is", "costs a rank", *(f"at most, P = {p}" for p in RANKS)]
    rows = [heads, ["---"] * 3 + ["---:"] * len(RANKS)]
    for name, cls in ALGORITHMS.items():
        module = inspect.getmodule(cls)
        cost = re.search(r"Costs (.*?)\.(?: |$)", markdown.document(module))
        most = [cls().bound(layout, k, p).words / (k * (p - 1) / p) for p in RANKS]
        rows.append(
            [f"`{name}`", markdown.first_sentence(module), cost[1] if cost else "", *(f"{words:.1f}" for words in most)]
        )
    return markdown.table(rows)
