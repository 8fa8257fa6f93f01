"""``python -m sparse_mpi selectors``: the table of selectors, from their docstrings and declared bands."""

from __future__ import annotations

import argparse
import inspect
import re

from sparse_mpi.select import SELECTORS


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "selectors",
        help="table of all selectors and how many entries they select",
        description="Print a Markdown table of every selector: its rule, and the fewest and the most it selects.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print(table())
    return 0


def table() -> str:
    """The table in Markdown."""
    rows = [["selector", "rule", "entries"], ["---"] * 3]
    for name, cls in SELECTORS.items():
        rule = re.split(r"\.(?: |$)", " ".join((inspect.getdoc(cls) or "").split()), maxsplit=1)[0]
        fewest, most = (f"{round(times, 2):g}k".replace("1k", "k") for times in cls().band)
        rows.append([f"`{name}`", rule, fewest if fewest == most else f"{fewest} to {most}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
