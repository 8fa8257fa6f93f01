"""Options of commands about a gradient: whose tensors it has, and on which links."""

from __future__ import annotations

import argparse

from sparse_mpi.cli import values
from sparse_mpi.predict import networks, rates
from sparse_mpi.predict.models import MODELS, layout
from sparse_mpi.sparse import Layout

USUAL_MODEL = "vgg16"

network = values.checked(networks.named, "10gbe", "network")
rate = values.checked(rates.parse, "100mbit", "rate")
any_rate = values.checked(rates.bits, "400gbit", "rate")


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
    return Layout.of(args.n) if args.n else layout(args.model)
