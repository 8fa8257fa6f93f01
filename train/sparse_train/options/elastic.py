"""The options of training that goes on when ranks are lost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.tools.cli.values import integer

# Options that take messages beside a step, which nothing would repeat
EXCLUDED = ("plan", "dense_warmup", "watch_every", "check_every")
COPY_EVERY = 200  # steps


def extend(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument_group("loss of ranks").add_argument
    text = "let the other ranks go on where one is lost; start with python -m sparse_mpi run --elastic"
    add("--elastic", action="store_true", help=text)
    text = (
        "copy each rank's residual to the next rank once in N steps, a part in each, so that it is not lost with the "
        f"rank; 0: never (default: {COPY_EVERY})"
    )
    add("--copy-every", type=integer(0), metavar="N", help=text)
    text = "with fewer ranks than N left, write a checkpoint and end with status 75 (default: 1)"
    add("--min-ranks", type=integer(1), metavar="N", help=text)
    text = "have the last N of the ranks wait, and take the places of lost ones (default: 0)"
    add("--spares", type=integer(0), metavar="N", help=text)


def resolve(parser: ArgumentParser, args: Namespace) -> None:
    """Fill in defaults, and reject what has no effect, or cannot go on."""
    for option in ("copy_every", "min_ranks", "spares"):
        if getattr(args, option) is not None and not args.elastic:
            parser.error(f"argument --{option.replace('_', '-')}: no rank may be lost without --elastic; add it")
    if args.elastic:
        wrong = [name for name in EXCLUDED if getattr(args, name)] + ["algo"] * (args.algo == "auto")
        if wrong:
            what = f"--{wrong[0].replace('_', '-')} {getattr(args, wrong[0])}"
            parser.error(f"argument --elastic: {what} needs all ranks to stay; leave out one of them")
    args.copy_every = COPY_EVERY if args.copy_every is None else args.copy_every
    args.min_ranks = args.min_ranks or 1
    args.spares = args.spares or 0


def reducing_ranks(args: Namespace, comm: Comm) -> dict[str, Any]:
    """Return the arguments of `sparse_mpi.optim.DistributedOptimizer` that say which ranks reduce."""
    team = team_of(comm)
    return {"comm": comm} if team is None else {"team": team, "copy_every": args.copy_every}
