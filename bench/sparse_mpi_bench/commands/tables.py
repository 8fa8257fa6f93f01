"""``python -m sparse_mpi algorithms``, ``selectors``, ``wires``: tables in Markdown, from docstrings and declarations.

``selectors --model`` shows instead what all-dimension selection comes to on a model, from the shapes of its tensors.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse_mpi import wire
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import table, values
from sparse_mpi.cli.values import Parser, Refused, refusing
from sparse_mpi.predict.models import MODELS, layout
from sparse_mpi.reduction.arguments import resolve_k
from sparse_mpi.rows import RULES, quotas
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.wire import WIRES, Wire, pack_whole

DENSITY, RANKS = 0.01, (4, 64)  # of the bounds of algorithms
SIZE, DENSITIES = 1_000_000, (0.001, 0.01, 0.05)  # of the messages of formats
ROWS = Layout.of([(2, 2)])  # of which a selector with a floor takes more than one entry


def add_parser(commands: Any) -> None:
    """Declare the commands."""

    def add(name: str, table: Callable[[], str], text: str, description: str) -> Parser:
        parser = commands.add_parser(name, help=text, description=f"Print a Markdown table of {description}")
        parser.set_defaults(run=lambda args: print(table()) or 0)
        return parser

    text = "every algorithm: what it is, and the most one rank sends in a step."
    add("algorithms", algorithms, "table of all algorithms and what they cost", text)
    text = "every selector: its rule, and the fewest and the most it selects."
    parser = add("selectors", selectors, "table of all selectors and how many entries they select", text)
    text = "instead, how many entries `alldim` keeps of this model's gradient, and in how many bytes they are sent"
    parser.add_argument("--model", choices=list(MODELS), help=text)
    text = "nominal densities of that table (default: 0.001 0.01 0.02)"
    parser.add_argument("--density", type=values.share, nargs="+", metavar="D", help=text)
    parser.set_defaults(run=_selectors)
    text = "every message format: what it is, and the bytes of a float32 pair."
    add("wires", wires, "table of all message formats and how many bytes they take", text)


def algorithms() -> str:
    """Return the table of algorithms.

    The declared bounds are for VGG-16's gradient, in units of k(P-1)/P words, which are comparable between numbers of
    ranks.
    """
    gradient = layout("vgg16")
    k = round(gradient.size * DENSITY)
    heads = ["algorithm", "what it is", "costs a rank", *(f"at most, P = {p}" for p in RANKS)]
    rows = [heads, ["---"] * 3 + ["---:"] * len(RANKS)]
    for name, cls in ALGORITHMS.items():
        module = inspect.getmodule(cls)
        cost = re.search(r"Costs (.*?)\.(?: |$)", table.document(module))
        most = [f"{cls().bound(gradient, k, p).words / (k * (p - 1) / p):.1f}" for p in RANKS]
        rows.append([f"`{name}`", table.first_sentence(module), cost[1] if cost else "", *most])
    return table.markdown(rows)


def selectors() -> str:
    """Return the table of selectors."""
    rows = [["selector", "rule", "entries"], ["---"] * 3]
    for name, cls in SELECTORS.items():
        rule = table.first_sentence(cls)
        fewest, most = (f"{round(times, 2):g}k".replace("1k", "k") for times in cls().band)
        entries = fewest if fewest == most else f"{fewest} to {most}"
        rows.append([f"`{name}`", rule, entries + (", or the floor" if cls().floor(ROWS) > 1 else "")])
    return table.markdown(rows)


def model_rows(layout: Layout, densities: list[float]) -> str:
    """Return the table of one model: for each density and rule, what `AllDim` keeps of a gradient.

    The last column is what an entry outside the dense tensors costs in `adtopk`, a float32 value and its column.
    """
    heads = ["density", "rows", "true density", "number of rows", "elements in dense tensors", "bytes an entry"]
    rows = [heads, ["---:", "---", *["---:"] * 4]]
    for density in densities:
        k = resolve_k(layout.size, None, density)
        for rule in RULES:
            pattern = quotas(layout, k, rule)
            matrices = [t for t in pattern if len(layout.shapes[t.tensor]) >= 2]
            sparse = tuple(t for t in pattern if not t.whole)
            entries = sum(t.entries for t in sparse)
            width = 4 + wire.column_bytes(sparse) / entries if entries else 4
            true = sum(t.entries for t in pattern) / layout.size
            dense = layout.size - sum(t.size for t in matrices)
            lines = sum(t.rows for t in matrices)
            rows.append([f"{density:g}", f"`{rule}`", f"{true:.5f}", f"{lines:,}", f"{dense:,}", f"{width:.2f}"])
    return table.markdown(rows)


def wires() -> str:
    """Return the table of message formats; bytes a pair in one message of a vector of a million float32."""
    heads = ["wire", "what it is", "lossless", *(f"bytes a pair at {100 * density:g} %" for density in DENSITIES)]
    rows = [heads, ["---"] * 3 + ["---:"] * len(DENSITIES)]
    for name, each in WIRES.items():
        what = table.first_sentence(type(each))
        if each.codec is not None:
            coded = table.first_sentence(type(each.codec))
            what += f"; {coded[0].lower()}{coded[1:]}"
        lossless = "yes" if each.lossless else "no"
        rows.append([f"`{name}`", what, lossless, *(f"{_bytes(each, d):.2f}" for d in DENSITIES)])
    return table.markdown(rows)


def _selectors(args: argparse.Namespace) -> int:
    """Print the table of selectors, or of a model."""
    if args.density and not args.model:
        raise Refused("--density must come with --model, the table of one model; add for example --model vgg16")
    with refusing("--"):
        print(model_rows(layout(args.model), args.density or [0.001, 0.01, 0.02]) if args.model else selectors())
    return 0


def _bytes(wire: Wire, density: float) -> float:
    """Return the bytes of a pair."""
    count = round(density * SIZE)
    indices = np.arange(count, dtype=np.int32) * (SIZE // count)
    return pack_whole(wire, SparseVector(indices, np.ones(count, np.float32), SIZE)).buffer.nbytes / count
