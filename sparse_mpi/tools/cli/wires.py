"""``python -m sparse_mpi wires``: the table of message formats, from their docstrings and their messages."""

from __future__ import annotations

import argparse

import numpy as np

from sparse_mpi.sparse import SparseVector
from sparse_mpi.tools.cli import markdown
from sparse_mpi.wire import WIRES, Wire, pack_whole

SIZE, DENSITIES = 1_000_000, (0.001, 0.01, 0.05)


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "wires",
        help="table of all message formats and how many bytes they take",
        description="Print a Markdown table of every message format: what it is, and the bytes of a float32 pair.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(table())
    return 0


def table() -> str:
    """Return the table in Markdown; bytes a pair in one message of a vector of a million float32."""
    heads = ["wire", "what it is", "lossless", *(f"bytes a pair at {100 * density:g} %" for density in DENSITIES)]
    rows = [heads, ["---"] * 3 + ["---:"] * len(DENSITIES)]
    for name, wire in WIRES.items():
        what = markdown.first_sentence(type(wire))
        if wire.codec is not None:
            values = markdown.first_sentence(type(wire.codec))
            what += f"; {values[0].lower()}{values[1:]}"
        lossless = "yes" if wire.lossless else "no"
        rows.append([f"`{name}`", what, lossless, *(f"{_bytes(wire, d):.2f}" for d in DENSITIES)])
    return markdown.table(rows)


def _bytes(wire: Wire, density: float) -> float:
    count = round(density * SIZE)
    indices = np.arange(count, dtype=np.int32) * (SIZE // count)
    return pack_whole(wire, SparseVector(indices, np.ones(count, np.float32), SIZE)).buffer.nbytes / count
