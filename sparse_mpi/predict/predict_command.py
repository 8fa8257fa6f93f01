"""``python -m sparse_mpi predict advise``: does it pay on a cluster, and which settings to use."""

from __future__ import annotations

import argparse
from inspect import signature
from typing import Any

from sparse_mpi.checks import loaded
from sparse_mpi.cli import options, records, values
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.values import refusing
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.predict import fitted, questions, rates
from sparse_mpi.predict.advice import DENSITIES
from sparse_mpi.predict.cluster import GPUS, OF_GPUS
from sparse_mpi.predict.models import MODELS
from sparse_mpi.predict.questions import COMPARED
from sparse_mpi.predict.shown import OPTIMIZERS

DESCRIPTION = """\
Does it pay? Ask with your own model and cluster; no MPI is needed, and the answer takes a second:

  python -m sparse_mpi predict advise --model resnet50 --ranks 16 --rate 25gbit --batch-seconds 0.2
  python -m sparse_mpi predict advise --n 124000000 --ranks 8 --rate 1gbit --on cpu --cores 16

Is the answer good? Fit to what was measured on your machines (the package sparse_mpi_bench), and ask again:

  python -m sparse_mpi bench calibrate compare.json --json fit.json
  python -m sparse_mpi predict advise --model vgg16 --ranks 8 --rate 300mbit --from fit.json
"""
ADVISE = (
    option(
        "--model NAME",
        f"in place of --n: {', '.join(MODELS)}, or module:Name, what makes a torch module, for its tensors",
        values.where(str, lambda name: ":" in name or name in MODELS, "a known model or module:Name", "gpt2"),
    ),
    option("--optimizer", "that trains it (default: sgd for images, adamw for language)", choices=list(OPTIMIZERS)),
    count("--n", 14_728_266, "elements of the gradient (default: 14728266, VGG-16)"),
    option("--ranks P", "ranks, each with a link of its own", values.integer(1, MAX_RANKS), 8),
    option(
        "--rate RATE",
        "of a rank's link in each direction: 100mbit, 25gbit, 12.5GB/s; where ranks share a link, each has its part",
        values.checked(rates.bits, "400gbit", "rate"),
        required=True,
    ),
    option(
        "--batch-seconds S",
        "seconds that a rank computes in a step; 0 asks for the fastest reduction alone",
        values.number,
        0.0,
    ),
    option(
        "--on WHAT",
        f"where gradients are: {', '.join(GPUS)}, one a rank, or cpu, cores like those of this project's records "
        "(default: h100; cpu with --from)",
        choices=["cpu", *GPUS],
    ),
    option("--fabric", "of the links, for GPUs (default: rdma from 40gbit on)", choices=list(OF_GPUS)),
    option("--latency US", "microseconds of a message (default: as fitted, or usual for the fabric)", values.number),
    option("--cores C", "cores of a node, any share of them (default: one a rank)", values.positive),
    count("--ranks-per-node R", 1, "ranks that share the cores"),
    option(
        "--from FILE",
        "fit of bench calibrate: what messages cost and how fast ranks compute on your machines",
        values.file("fit.json"),
        dest="fit",
    ),
    option("--dense-ms MS", "milliseconds of a dense sum there, where you have measured it", values.positive),
    option(
        "--algorithms NAME",
        f"other ways to compare, of {options.SPELLINGS} (default: {', '.join(COMPARED)})",
        values.Value(questions.flat, "", "oktopk"),
        [],
        nargs="+",
    ),
    option("--densities D", "densities of these", values.share, DENSITIES, nargs="+"),
    option(
        "--no-overlap",
        "sums wait for the end of the backward pass; else exchanges, dense and sparse, hide behind it",
        action="store_false",
        dest="overlap",
    ),
    option("--utilisation U", "share of a step that the batch is to take", values.part, 0.9),
    option("--json FILE", "also write all numbers", values.record),
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("predict", help="does it pay on a cluster, and what to use", description=DESCRIPTION)
    text = "does it pay, and what to use: algorithm, message format, density, local steps"
    questions = parser.add_subparsers(title="questions", metavar="WHAT", required=True)
    question = questions.add_parser("advise", help=text, description=DESCRIPTION)
    options.declare(question, ADVISE)
    question.set_defaults(run=_advise)


def made(name: str) -> object:
    """Return the torch module that ``module:Name`` is, or makes. Raises ValueError: it is none."""
    found = loaded("model", name)
    if isinstance(found, type) or not hasattr(found, "parameters"):
        try:
            found = found()  # type: ignore[operator]
        except Exception as problem:
            raise ValueError(
                f"model must be, or make without arguments, a torch module, got {name}: {problem}"
            ) from None
    return found


def _advise(args: argparse.Namespace) -> int:
    with refusing("--from: "):
        fit = fitted.read(args.fit) if args.fit else None
    given = {name: getattr(args, name) for name in signature(questions.advise).parameters if name != "model"}
    with refusing("--"):
        model = made(args.model) if args.model and ":" in args.model else args.model or args.n
        answer = questions.advise(model, **given | {"fit": fit})
    print(answer)
    if args.json:
        records.write(args.json, {"options": records.options(args), **records.provenance(), **answer.record()})
    return 0
