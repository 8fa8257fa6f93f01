"""``python -m sparse_mpi draw``: the figure of records, drawn anew."""

from __future__ import annotations

import argparse
from functools import partial

from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.figures import save
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.figures.redraw import KINDS, kind_of, read

DESCRIPTION = """\
Draw the figure of records that commands wrote with --json: the one that their --plot draws. Each figure is written
twice, for light pages and, as NAME-dark, for dark ones; as SVG, PNG or PDF, by the extension.

  python -m sparse_mpi draw docs/results/compare-vgg16.json --plot compare.svg
  python -m sparse_mpi draw docs/results/compare-vgg16.json --kind best --plot best.svg
  python -m sparse_mpi draw docs/results/accuracy-lstm.json --plot gaps.svg
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare ``draw``."""
    parser = commands.add_parser("draw", help="the figure of records, on light and dark paper", description=DESCRIPTION)
    text = "files that were written with --json"
    parser.add_argument("records", type=values.file("record.json"), nargs="+", metavar="RECORD", help=text)
    parser.add_argument("--plot", type=values.figure, required=True, metavar="FILE", help="where to (needs matplotlib)")
    text = "where records have several figures (default: the first that fits): %(choices)s"
    parser.add_argument("--kind", choices=list(KINDS), metavar="NAME", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, or say in a line why not."""
    try:
        records = read(args.records)
        kind = kind_of(records, args.kind)
    except ValueError as error:
        raise Refused(f"argument RECORD: {error}") from None
    save(partial(kind.figure, records), args.plot)
    return 0
