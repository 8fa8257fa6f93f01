"""The options of training by local steps, after which ranks exchange the movement of their models."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from torch import nn

from sparse_mpi.cli.values import integer, number
from sparse_mpi.comm import Comm
from sparse_mpi.training.diloco import DiLoCo
from sparse_train.options.optimization import given, spelled_option
from sparse_train.options.reduction import AUTO, algorithm_and_options, feedback_options

DEFAULTS = {"outer_lr": 1.0, "outer_momentum": 0.0}  # the plain mean
# Options for gradients that are reduced in every step
EXCLUDED = (
    *("plan", "dense_warmup", "watch_every", "timeline"),
    *("elastic", "momentum_by", "overlap", "bucket_mb"),
)


def extend(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("local steps").add_argument
    text = "let each rank take H steps of its own, without reducing gradients, and then reduce what its parameters "
    text += "have moved (DiLoCo): --algo, --density, --wire and --feedback are for that; evaluation and checkpoints "
    text += "have the parameters that all ranks agree on, and after the last step all are brought together (default: "
    text += "reduce the gradients of every step); a learning rate that is a default is then that of one rank"
    add("--local-steps", type=integer(1), metavar="H", help=text)
    text = f"rate of the outer optimizer, sgd (default: {DEFAULTS['outer_lr']:g}, the plain mean; DiLoCo: 0.7)"
    add("--outer-lr", type=number, metavar="LR", help=text)
    text = f"its Nesterov momentum (default: {DEFAULTS['outer_momentum']:g}; DiLoCo: 0.9, for hundreds of local steps)"
    add("--outer-momentum", type=number, metavar="M", help=text)


def resolve(parser: ArgumentParser, args: Namespace) -> None:
    if not args.local_steps:
        for name in DEFAULTS:
            if getattr(args, name) is not None:
                option = spelled_option(name)
                parser.error(f"argument {option}: needs local steps; add --local-steps H, or leave it out")
        return
    if other := given(args, EXCLUDED):
        text = "is for gradients that are reduced in every step; leave out one of them"
        parser.error(f"argument --local-steps: {other} {text}")
    if args.algo == AUTO:
        parser.error("argument --local-steps: --algo auto chooses for gradients of every step; name the algorithm")
    for option, value in DEFAULTS.items():
        if getattr(args, option) is None:
            setattr(args, option, value)
    # Inner steps reduce nothing: there are no buckets, and no gradients are late
    args.momentum_by, args.overlap = "local", False
    args.bucket_mb = 0.0


def local_steps(model: nn.Module, inner: torch.optim.Optimizer, args: Namespace, comm: Comm) -> DiLoCo:
    """Return the `DiLoCo` that follows the steps of ``inner`` and exchanges movements of ``model``; collective.

    Raises TypeError, ValueError: bad options, or ranks that differ in them; on every rank alike.
    """
    momentum = args.outer_momentum
    outer = torch.optim.SGD(model.parameters(), args.outer_lr, momentum, nesterov=momentum > 0)
    how: dict[str, Any] = algorithm_and_options(args) | {"feedback": feedback_options(args)["feedback"]}
    return DiLoCo(
        model,
        inner,
        outer,
        args.local_steps,
        k=args.k,
        density=args.density,
        comm=comm,
        **how,
    )
