"""The options of training programs that say how gradients are reduced."""

from __future__ import annotations

import math
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparse_mpi
from options.converters import densities, integer, norm, number, share
from sparse_mpi.plan.planners import ORACLES, PLANNERS
from sparse_mpi.reducer.arguments import takes
from sparse_mpi.wire import WIRES

AUTO = "auto"  # in place of an algorithm: profile the job and plan
RESIDUALS = ("sender", "owner", "keeper", "published")  # what any algorithm calls them
OPTIONS = ("selector", "wire", "residual", "rank")  # of algorithms


def extend(parser: ArgumentParser, default: Callable[[str], str]) -> None:
    """Add them; ``default`` tells that of a setting, for --help."""
    group = parser.add_argument_group("sparse reduction")
    add, add_amount = group.add_argument, group.add_mutually_exclusive_group().add_argument
    text = "auto: watch the first steps, measure the network, plan which tensors go which way (default: oktopk)"
    add("--algo", choices=(*sparse_mpi.ALGORITHMS, AUTO), help=text)
    text = "reduce as this plan says, made by --algo auto or by python -m sparse_mpi plan"
    add("--plan", type=Path, metavar="FILE", help=text)
    text = "who plans with --algo auto; best takes the fastest plan of all (default: best)"
    add("--planner", choices=("best", *(name for name in PLANNERS if name not in ORACLES)), help=text)
    text = "steps watched by --algo auto, which reduce all entries (default: 5)"
    add("--profile-steps", type=integer(1), metavar="N", help=text)
    text = "what picks the entries to send (default: the algorithm's own)"
    add("--selector", choices=tuple(sparse_mpi.SELECTORS), help=text)
    text = "message format: pairs as they are, or packed, their values rounded or not (default: the algorithm's own)"
    add("--wire", choices=tuple(WIRES), help=text)
    text = "who keeps what is not in the result (default: the algorithm's own)"
    add("--residual", choices=RESIDUALS, help=text)
    text = "rank of the matrices of a low-rank algorithm (default: 4)"
    add("--rank", type=integer(1), metavar="R", help=text)
    text = "share of the gradient's entries to reduce " + default("density")
    add_amount("--density", type=share, metavar="D", help=text)
    add_amount("--k", type=integer(1), metavar="K", help="their number, instead of --density")
    text = "reduce all entries in the first N steps (default: 0)"
    add("--dense-warmup", type=integer(0), default=0, metavar="N", help=text)
    text = (
        "densities of the first epochs, separated by commas, or in how many epochs it falls to --density (default: 0)"
    )
    add("--density-warmup", type=densities, default=0, metavar="D,D,.. | E", help=text)
    text = "what becomes of what is not sent: added to the next gradient, its momentum too, nothing (default: residual)"
    add("--memory", choices=tuple(sparse_mpi.MEMORIES), default="residual", help=text)
    text = "L2 norm to clip gradients to, C / sqrt(ranks) on each rank; inf: no clipping " + default("clip_norm")
    add("--clip-norm", type=norm, metavar="C", help=text)
    text = "let gradients add up in the residual's own memory (default: wherever that is possible)"
    add("--zero-copy", action=BooleanOptionalAction, default=None, help=text)
    text = "reduce while the backward pass still runs, bucket by bucket (default: unless there is a plan)"
    add("--overlap", action=BooleanOptionalAction, default=None, help=text)
    text = "10^6 bytes of gradients a bucket; 0 puts all in one, as a plan and clipping do (default: 25)"
    add("--bucket-mb", type=number, metavar="MB", help=text)
    text = "every N steps assert that ranks agree and nothing is lost; slow (default: 0, never)"
    add("--check-every", type=integer(0), default=0, metavar="N", help=text)


def resolve_algorithm(parser: ArgumentParser, args: Namespace) -> None:
    """Resolve what reduces, and refuse options that would have no effect."""
    if args.plan and args.algo:
        parser.error(f"argument --plan: the plan says what reduces, leave out --algo {args.algo}")
    if args.plan and (args.k or args.density):
        parser.error("argument --plan: the plan says how much is reduced, leave out --k and --density")
    automatic = args.algo == AUTO
    for option in ("planner", "profile_steps"):
        if getattr(args, option) and not automatic:
            parser.error(f"argument --{option.replace('_', '-')}: only --algo auto plans; add it, or leave this out")
    args.planner, args.profile_steps = args.planner or "best", args.profile_steps or 5
    args.algo = args.algo or ("plan" if args.plan else "oktopk")
    if automatic and args.max_steps and args.max_steps <= args.profile_steps:
        parser.error(f"argument --max-steps: must be above the {args.profile_steps} --profile-steps of --algo auto")
    if args.memory == "dgc" and (args.plan or automatic):
        parser.error("argument --memory: dgc cannot tell what to mask in a plan; use --memory residual")
    if automatic and args.dense_warmup:
        parser.error("argument --dense-warmup: --algo auto starts dense by itself; use --profile-steps")
    for option, value in algorithm_options(args).items():
        if args.plan or automatic or not takes(args.algo, option, value):
            which = "a plan" if args.plan or automatic else args.algo
            parser.error(f"argument --{option}: {which} cannot take {value}; leave it out, or take another --algo")


def algorithm_options(args: Namespace) -> dict[str, Any]:
    """The options of the algorithm that `parse` has a value for."""
    return {option: value for option in OPTIONS if (value := getattr(args, option)) is not None}


def resolve_buckets(parser: ArgumentParser, args: Namespace) -> None:
    """One bucket for what needs the whole gradient, else several."""
    reasons = {"a plan": args.plan or args.algo == AUTO, "clipping": args.clip_norm is not None}
    whole = [reason for reason, holds in reasons.items() if holds]
    for option in ("overlap", "bucket_mb"):
        if whole and getattr(args, option):
            name = option.replace("_", "-")
            parser.error(f"argument --{name}: {whole[0]} needs the whole gradient; leave out --{name}, or that")
    args.overlap = not whole if args.overlap is None else args.overlap
    args.bucket_mb = 0.0 if whole else 25.0 if args.bucket_mb is None else args.bucket_mb


def resolve_feedback(parser: ArgumentParser, args: Namespace) -> None:
    """Work in place where that is possible, and let the memory have the momentum if it is one for momentum."""
    args.clip_norm = None if args.clip_norm == math.inf else args.clip_norm
    possible = args.memory == "residual" and args.clip_norm is None
    if args.zero_copy and not possible:
        parser.error("argument --zero-copy: needs --memory residual and no clipping (--clip-norm inf)")
    args.zero_copy = possible if args.zero_copy is None else args.zero_copy
    args.correction = 0.0  # momentum of the memory
    if args.optimizer != "sgd":
        args.momentum = 0.0  # theirs is their own
    if args.memory == "dgc":
        if args.optimizer != "sgd":
            parser.error(
                f"argument --memory: dgc corrects the momentum of sgd, not of {args.optimizer}; "
                "use --memory residual, or --optimizer sgd"
            )
        if args.momentum >= 1:
            parser.error(f"argument --momentum: must be below 1 with --memory dgc, got {args.momentum}")
        args.correction, args.momentum = args.momentum, 0.0


def feedback_options(args: Namespace) -> dict[str, Any]:
    """What `sparse_mpi.SparseAllreduce` is to be told of memory, as `parse` has it."""
    memory = sparse_mpi.MomentumCorrection(args.correction) if args.memory == "dgc" else args.memory
    return {"memory": memory, "clip_norm": args.clip_norm, "in_place": args.zero_copy}
