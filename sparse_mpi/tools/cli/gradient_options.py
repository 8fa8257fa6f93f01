"""Options of benchmarks that say what the gradient is made of: the tensors of a model, or a single one."""

from __future__ import annotations

import argparse

from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.cli import values

USUAL = "vgg16"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare ``--model`` and ``--n``."""
    gradient = parser.add_mutually_exclusive_group()
    gradient.add_argument(
        "--model", choices=list(MODELS), help=f"whose tensors make up the gradient (default: {USUAL})"
    )
    gradient.add_argument(
        "--n", type=values.integer(1), help="elements of a gradient that is one flat tensor (default: --model)"
    )


def layout_of(args: argparse.Namespace) -> Layout:
    """Return the gradient's layout; ``args.model`` becomes the model that is taken, None if there is none."""
    if args.n is None:
        args.model = args.model or USUAL
    return Layout.of(args.n or [shape for _, shape in MODELS[args.model]()])
