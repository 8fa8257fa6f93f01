"""``python -m sparse_mpi draw``: the figure of records, drawn anew."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from sparse_mpi.figures.redraw import KINDS, kind_of, read
from sparse_mpi.figures.style import write

DESCRIPTION = """\
Draw the figure of records that commands wrote with --json: the one that their --plot draws. Each figure is written
twice, for light pages and, as NAME-dark, for dark ones; as SVG, PNG or PDF, by the extension.

  python -m sparse_mpi draw docs/results/compare-vgg16.json --plot compare.svg
  python -m sparse_mpi draw docs/results/compare-vgg16.json --kind best --plot best.svg
  python -m sparse_mpi draw docs/results/accuracy/lstm/*.json --plot gaps.svg
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare ``draw``."""
    parser = commands.add_parser(
        "draw",
        help="the figure of records, on light and dark paper",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("records", nargs="+", metavar="RECORD", help="files that were written with --json")
    parser.add_argument("--plot", required=True, metavar="FILE", help="the figure (needs matplotlib)")
    text = "where records have several figures (default: the first that fits): %(choices)s"
    parser.add_argument("--kind", choices=list(KINDS), metavar="NAME", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, or say in a line why not."""
    try:
        records = read(args.records)
        figure = kind_of(records, args.kind).figure
        write(partial(figure, records), args.plot)
    except (ValueError, ImportError, OSError) as error:
        print(f"draw: {error}", file=sys.stderr)
        return 2
    return 0
