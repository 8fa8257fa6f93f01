"""``python -m sparse_mpi predict``: the questions and their parsers."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from sparse_mpi.cli.values import Parser
from sparse_mpi.predict.headlines import PUBLISHED
from sparse_mpi.predict.questions import DESCRIPTION, PREDICTIONS
from sparse_mpi.predict.questions_of_records import QUESTIONS


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("predict", help="does it pay on a cluster, and what to use", description=DESCRIPTION)
    parser.set_defaults(run=partial(_shown, parser))
    questions = parser.add_subparsers(title="questions", metavar="WHAT")
    for prediction in (*PREDICTIONS, *QUESTIONS, PUBLISHED):
        prediction.add_parser(questions)


def _shown(parser: Parser, _: argparse.Namespace) -> int:
    parser.print_help()
    return 0
