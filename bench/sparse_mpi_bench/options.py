"""Options of several benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.cli import values
from sparse_mpi.cli.options import count
from sparse_mpi.predict.models import MODELS, layout
from sparse_mpi.reduction.arguments import make_algorithm, spelled, takes
from sparse_mpi.sparse import Layout
from sparse_mpi_bench.analysis.gradients import KINDS
from sparse_mpi_bench.chaos import drawing
from sparse_mpi_bench.emulation import schedule

USUAL_MODEL = "vgg16"
GRADIENTS = f"{', '.join(KINDS)}, or a file of train/gradients.py"

gradients = values.where(str, lambda given: given in KINDS or Path(given).is_file(), GRADIENTS, "independent")
every = values.checked(lambda given: [schedule.length(each) for each in given.split(",")], "30s", "every")
turns = values.checked(lambda given: [schedule.link(each) for each in given.split(",")], "1gbit,50mbit", "rate")
chaos = values.checked(drawing.parse, "mtti=60,seed=1", "chaos")

RANKS_PER_NODE = count("--ranks-per-node R", 4, "consecutive ranks that are a node")


def processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=values.integer(1), default=4, help="processes (default: 4)")


def gradient(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    text = f"whose tensors make up the gradient (default: {USUAL_MODEL})"
    group.add_argument("--model", choices=list(MODELS), help=text)
    text = "elements of a gradient that is one flat tensor (default: --model)"
    group.add_argument("--n", type=values.integer(1), help=text)


def algorithm(text: str, args: argparse.Namespace) -> Algorithm:
    """Return the algorithm that ``text`` spells, with ``--ranks-per-node`` if it takes that."""
    name, own = spelled(text)
    nodes = {"ranks_per_node": args.ranks_per_node}
    return make_algorithm(name, nodes | own if takes(name, "ranks_per_node", args.ranks_per_node) else own)


def layout_of(args: argparse.Namespace) -> Layout:
    """Return the gradient's layout; ``args.model`` becomes the model that is taken, None if there is none."""
    if args.n is None:
        args.model = args.model or USUAL_MODEL
    return Layout.of(args.n) if args.n else layout(args.model)
