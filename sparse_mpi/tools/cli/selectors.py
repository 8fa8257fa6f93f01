"""``python -m sparse_mpi selectors``: the table of selectors, from their docstrings and declared bands.

With ``--model``: what all-dimension selection comes to on a model, from the shapes of its tensors.
"""

from __future__ import annotations

import argparse

from sparse_mpi import wire
from sparse_mpi.reduction.arguments import resolve_k
from sparse_mpi.rows import RULES, quotas
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.cli import markdown, values
from sparse_mpi.tools.cli.parsing import Refused

ROWS = Layout.of([(2, 2)])  # of which a selector with a floor takes more than one entry


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "selectors",
        help="table of all selectors and how many entries they select",
        description="Print a Markdown table of every selector: its rule, and the fewest and the most it selects.",
    )
    text = "instead, how many entries `alldim` keeps of this model's gradient, and in how many bytes they are sent"
    parser.add_argument("--model", choices=list(MODELS), help=text)
    text = "nominal densities of that table (default: 0.001 0.01 0.02)"
    parser.add_argument("--density", type=values.share, nargs="+", metavar="D", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.density and not args.model:
        raise Refused("--density must come with --model, the table of one model; add for example --model vgg16")
    if args.model:
        layout = Layout.of([shape for _, shape in MODELS[args.model]()])
        try:
            print(model_table(layout, args.density or [0.001, 0.01, 0.02]))
        except ValueError as error:
            raise Refused(f"--{error}") from None
    else:
        print(table())
    return 0


def table() -> str:
    """Return the table in Markdown."""
    rows = [["selector", "rule", "entries"], ["---"] * 3]
    for name, cls in SELECTORS.items():
        rule = markdown.first_sentence(cls)
        fewest, most = (f"{round(times, 2):g}k".replace("1k", "k") for times in cls().band)
        entries = fewest if fewest == most else f"{fewest} to {most}"
        rows.append([f"`{name}`", rule, entries + (", or the floor" if cls().floor(ROWS) > 1 else "")])
    return markdown.table(rows)


def model_table(layout: Layout, densities: list[float]) -> str:
    """Return the table of one model in Markdown: for each density and rule, what `AllDim` keeps of a gradient.

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
    return markdown.table(rows)
