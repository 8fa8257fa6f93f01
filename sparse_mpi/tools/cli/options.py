"""Options that several commands have, each declared by a call, in the order in which ``--help`` shows them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.analysis.gradients import KINDS
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.cli import values

POWERS = tuple(2**i for i in range(1, 11))
USUAL_MODEL = "vgg16"
DRAWN = "of all that is drawn at random"
Option = Callable[[argparse.ArgumentParser], object]  # declares itself


def option(*names: str, **keywords: Any) -> Option:
    """Return the option that ``add_argument`` makes of these arguments."""
    return lambda parser: parser.add_argument(*names, **keywords)


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Declare ``options`` in their order."""
    for each in options:
        each(parser)


def count(name: str, default: int | None, text: str, least: int = 1, **keywords: Any) -> Option:
    """Return the option of an integer that is at ``least`` so much."""
    return option(name, type=values.integer(least), default=default, help=text, **keywords)


def share(text: str, default: Any = 0.01, name: str = "--density", **keywords: Any) -> Option:
    """Return the option of a share in (0, 1]."""
    return option(name, type=values.share, default=default, help=text, **keywords)


def several(name: str, choices: Iterable[str], text: str = "(default: all)", **keywords: Any) -> Option:
    """Return the option of some of ``choices``, by default all."""
    known = list(choices)
    return option(
        name, **{"nargs": "+", "choices": known, "default": known, "metavar": "NAME", "help": text} | keywords
    )


def seed(text: str = DRAWN) -> Option:
    """Return ``--seed``."""
    return count("--seed", 0, text, 0)


def json(text: str = "also write all numbers, with what they were measured on") -> Option:
    """Return ``--json``."""
    return option("--json", type=values.record, metavar="FILE", help=text)


def plot(text: str) -> Option:
    """Return ``--plot``."""
    return option("--plot", type=values.figure, metavar="FILE", help=text)


def algorithms(text: str = "(default: all)") -> Option:
    """Return ``--algorithms``, by name."""
    return several("--algorithms", ALGORITHMS, text)


def gradient(parser: argparse.ArgumentParser) -> None:
    """Declare ``--model`` and ``--n``: the tensors of a model, or a single one."""
    group = parser.add_mutually_exclusive_group()
    text = f"whose tensors make up the gradient (default: {USUAL_MODEL})"
    group.add_argument("--model", choices=list(MODELS), help=text)
    text = "elements of a gradient that is one flat tensor (default: --model)"
    group.add_argument("--n", type=values.integer(1), help=text)


def layout_of(args: argparse.Namespace) -> Layout:
    """Return the gradient's layout; ``args.model`` becomes the model that is taken, None if there is none."""
    if args.n is None:
        args.model = args.model or USUAL_MODEL
    return Layout.of(args.n or [shape for _, shape in MODELS[args.model]()])


def powers_of_ranks(most: int = MAX_RANKS) -> Option:
    """Return ``--ranks``: several numbers of ranks in one process, by default powers of two from 2 to 1024."""
    text = "default: powers of two from 2 to 1024"
    return option("--ranks", type=values.integer(1, most), nargs="+", default=POWERS, metavar="P", help=text)


def ranks_per_node() -> Option:
    """Return ``--ranks-per-node`` of ranks in one process."""
    return count("--ranks-per-node", 4, "consecutive ranks that are a node (default: 4)", metavar="R")


def recorded_gradients() -> Option:
    """Return ``--gradients``: made-up ones, or recorded ones."""
    text = f"{', '.join(KINDS)}, or a file of train/gradients.py (default: independent)"
    return option("--gradients", type=values.gradients, default="independent", metavar="KIND", help=text)


def most_gigabytes() -> Option:
    """Return ``--most-gigabytes``."""
    text = "skip what needs more GB of memory (default: 12)"
    return option("--most-gigabytes", type=values.positive, default=12.0, metavar="GB", help=text)
