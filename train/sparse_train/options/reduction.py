"""The options of training programs that say how gradients are reduced, and to how many entries."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import integer, number, share
from sparse_mpi.feedback import Feedback, LeakyFeedback
from sparse_mpi.reduction.arguments import can_carry, make_selector, make_wire, spelled, takes
from sparse_mpi.training.adam_steps import TRAVELLING
from sparse_mpi.training.optimizer_rule import ARRIVAL, TAKING, fading
from sparse_mpi.wire import WIRES
from sparse_train.options.optimization import densities, given, norm

AUTO = "auto"  # --algo auto: `predict` advises an algorithm; --plan auto: ways to reduce are measured
PLAN = "plan"  # stands in ``args.algo`` where a plan names the reducers
RESIDUALS = ("sender", "owner", "merger", "published")  # values of the option ``residual`` of all algorithms
RULES = ("residual", "leaky", "none")  # rules of --feedback
LEAKS = {"residual": 0.0, "leaky": 0.05}  # rules that --leak is for, and its defaults
WORDS = ("matched", "global", "corrected", "local", TRAVELLING, ARRIVAL)  # words of --momentum-by and ``momentum=``
NEEDS = {
    **dict.fromkeys(TAKING, "--optimizer sgd with --momentum below 1, and --feedback residual or leaky"),
    "corrected": "--optimizer sgd with --momentum below 1, and --feedback residual without --leak",
    TRAVELLING: "--optimizer adamw, or adam without --weight-decay, --feedback residual or leaky, and an --algo that "
    "can carry them, as elect does with packed wires",
    ARRIVAL: "--optimizer adam or adamw, and --feedback residual or leaky",
}
MOVED = {"gmc": "global", "dgc": "corrected"}  # former words of --feedback
OPTIONS = ("selector", "wire", "residual", "rank")  # options of algorithms


def extend(parser: ArgumentParser, default: Callable[[str], str]) -> None:
    group = parser.add_argument_group("sparse reduction")
    add, add_amount = group.add_argument, group.add_mutually_exclusive_group().add_argument
    text = f"the algorithm: {', '.join(sparse_mpi.ALGORITHMS)}, with options if need be, as in elect:votes=0.5; or "
    text += "auto, which measures the network and takes what predict advises for it (default: elect)"
    add("--algo", type=values.Value(_algorithm, "", "elect"), metavar="NAME[:OPTION=VALUE..]", help=text)
    text = "reduce as a plan says: auto measures before the first step which algorithm is fastest for which tensors; "
    text += "FILE is a plan made that way or by python -m sparse_mpi plan"
    add("--plan", type=values.Value(_plan, f"{AUTO} or a file", "auto"), metavar="auto | FILE", help=text)
    text = f"what picks the entries to send: {', '.join(sparse_mpi.SELECTORS)} (default: the algorithm's own)"
    add("--selector", type=values.checked(make_selector, "dgc", "selector"), metavar="NAME", help=text)
    text = f"message format: pairs as they are, or packed, their values rounded or not: {', '.join(WIRES)} "
    text += "(default: the algorithm's own)"
    add("--wire", type=values.checked(make_wire, "packed", "wire"), metavar="NAME", help=text)
    text = "who keeps what is not in the result (default: the algorithm's own)"
    add("--residual", choices=RESIDUALS, help=text)
    text = "rank of the matrices of a low-rank algorithm (default: 4)"
    add("--rank", type=integer(1), metavar="R", help=text)
    text = "share of the gradient's entries to reduce " + default("density")
    add_amount("--density", type=share, metavar="D", help=text)
    add_amount("--k", type=integer(1), metavar="K", help="their number, instead of --density")
    text = "reduce all entries in the first N steps (default: 0)"
    add("--dense-warmup", type=integer(0), default=0, metavar="N", help=text)
    text = "densities of the first epochs, separated by commas; or in how many epochs it falls to --density; or D@E, "
    text += "from D to --density in E epochs, a little in every step (default: 0)"
    add("--density-warmup", type=densities, default=0, metavar="D,D,.. | E | D@E", help=text)
    text = "where momentum is applied to sums that are late. With sgd: matched, before the selection and less of it; "
    text += "global, the same with all of it; corrected, to each rank's own gradients (DGC). With adam and adamw: "
    text += "second-moment, which travels with the entries, a byte each; arrival, where an entry makes up for the "
    text += (
        "steps that it has waited. local: the optimizer applies it (default: the first that fits; local for sgd where "
    )
    text += "--feedback is given)"
    add("--momentum-by", choices=WORDS, help=text)
    text = "error feedback: residual adds entries that are not sent to the next gradient, leaky lets them fade by 5 %% "
    text += "a step, none drops them (default: residual)"
    add("--feedback", type=values.Value(_feedback, f"one of {', '.join(RULES)}", "residual"), metavar="NAME", help=text)
    text = "share of what was not sent that fades from step to step (default: 0; leaky 0.05; with momentum matched by "
    text += "default what lacks to 1 %% where --density is less)"
    add("--leak", type=share, metavar="S", help=text)
    text = "L2 norm to clip the mean of all ranks' gradients to; inf: no clipping " + default("clip_norm")
    add("--clip-norm", type=norm, metavar="C", help=text)
    text = "send all that ranks still owe, densely, and apply it after the last step (default: --no-flush)"
    add("--flush", action=BooleanOptionalAction, default=False, help=text)
    text = "reduce while the backward pass still runs, bucket by bucket (default: unless there is a plan)"
    add("--overlap", action=BooleanOptionalAction, default=None, help=text)
    text = "10^6 bytes of gradients a bucket; 0 puts all in one, as a plan and clipping do (default: 25)"
    add("--bucket-mb", type=number, metavar="MB", help=text)
    text = "every N steps measure what is sent: its share of the attainable energy, xi of Ok-Topk's assumption, and "
    text += "how many steps entries had waited; costs two dense allreduces each time (default: 0, never)"
    add("--watch-every", type=integer(0), default=0, metavar="N", help=text)
    text = "every N steps assert that ranks agree and nothing is lost; slow (default: 0, never)"
    add("--check-every", type=integer(0), default=0, metavar="N", help=text)


def _algorithm(text: str) -> str:
    return text if text == AUTO else values.algorithm(text)


def _feedback(text: str) -> str:
    if text in MOVED:
        raise ArgumentTypeError(f"{text} was removed in 0.4.0: write --momentum-by {MOVED[text]}")
    if text not in RULES:
        raise ValueError
    return text


def _plan(text: str) -> str | Path:
    return AUTO if text == AUTO else values.file("plan.json")(text)


def resolve_algorithm(parser: ArgumentParser, args: Namespace) -> None:
    planning, choosing = args.plan == AUTO, args.algo == AUTO
    # A plan names the algorithms, and a plan file their amounts too.
    if args.plan and args.algo:
        why = "--plan auto chooses the algorithms" if planning else "the plan says what reduces"
        parser.error(f"argument --plan: {why}, leave out --algo {args.algo} or --plan {args.plan}")
    if args.plan and not planning and (args.k or args.density):
        parser.error("argument --plan: the plan says how much is reduced, leave out --k and --density")
    # Options of an algorithm need one that is named and takes them.
    args.algo = PLAN if args.plan else args.algo or "elect"
    name, options = ("", {}) if args.plan or choosing else spelled(args.algo)
    for option, value in algorithm_options(args).items():
        if not name or not takes(name, option, value):
            which = "a plan" if args.plan else "--algo auto" if choosing else name
            parser.error(f"argument --{option}: {which} cannot take {value}; leave it out, or take another --algo")
        if option in options:
            parser.error(f"argument --{option}: {args.algo} has one; leave out --{option}, or that")


def algorithm_options(args: Namespace) -> dict[str, Any]:
    return {option: value for option in OPTIONS if (value := getattr(args, option)) is not None}


def algorithm_and_options(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `sparse_mpi.optim.DistributedOptimizer` that make the algorithm of --algo."""
    name, options = (args.algo, {}) if args.algo == AUTO else spelled(args.algo)
    return {"algorithm": name, **options, **algorithm_options(args)}


def resolve_buckets(parser: ArgumentParser, args: Namespace) -> None:
    """Put all gradients in one bucket where a plan or clipping needs the whole gradient, else in several."""
    reasons = {"a plan": args.plan, "clipping": args.clip_norm is not None}
    whole = [reason for reason, holds in reasons.items() if holds]
    if whole and (other := given(args, ("overlap", "bucket_mb"))):
        parser.error(f"argument {other}: {whole[0]} needs the whole gradient; leave out {other}, or that")
    args.overlap = not whole if args.overlap is None else args.overlap
    args.bucket_mb = 0.0 if whole else 25.0 if args.bucket_mb is None else args.bucket_mb


def resolve_momentum(parser: ArgumentParser, args: Namespace) -> None:
    """Choose the mode of momentum where none is given: the first that optimizer, algorithm and feedback can take."""
    sgd, default = args.optimizer == "sgd", args.feedback is None
    args.feedback = args.feedback or "residual"
    if args.leak and args.feedback not in LEAKS:
        parser.error(f"argument --leak: {args.feedback} has none; leave it out, or take --feedback {', '.join(LEAKS)}")
    args.leak = args.leak or LEAKS.get(args.feedback, 0.0)
    waits = args.feedback != "none"
    able = dict.fromkeys(("matched", "global"), sgd and waits and args.momentum < 1)
    able |= {"corrected": able["global"] and not args.leak, ARRIVAL: waits and not sgd, "local": True}
    able[TRAVELLING] = able[ARRIVAL] and (args.optimizer == "adamw" or not args.weight_decay) and _carries(args)
    if args.momentum_by and not able[args.momentum_by]:
        got = f"got {args.optimizer}, {args.feedback} and {args.algo}"
        parser.error(f"argument --momentum-by: {args.momentum_by} needs {NEEDS[args.momentum_by]}, {got}")
    if args.momentum_by is None and sgd:
        args.momentum_by = "matched" if default and 0 < args.momentum < 1 and not args.plan else "local"
    args.momentum_by = args.momentum_by or next(mode for mode in (TRAVELLING, ARRIVAL, "local") if able[mode])
    args.momentum = args.momentum if sgd else 0.0  # Adam has its own
    args.correction = args.momentum if args.momentum_by in TAKING else 0.0  # the momentum that error feedback applies


def _carries(args: Namespace) -> bool:
    if args.algo == PLAN or (args.density or 0) >= 1:
        return False
    options = algorithm_and_options(args)
    return can_carry(options.pop("algorithm"), options)


def resolve_clipping(parser: ArgumentParser, args: Namespace) -> None:
    args.clip_norm = None if args.clip_norm == math.inf else args.clip_norm
    if args.flush and args.feedback == "none":
        parser.error(f"argument --flush: --feedback {args.feedback} owes nothing; leave out one of them")


def feedback_options(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `sparse_mpi.optim.DistributedOptimizer` about error feedback, from parsed options."""
    feedback: str | Feedback = LeakyFeedback(1 - args.leak) if args.leak else args.feedback
    return {"feedback": feedback, "momentum": args.momentum_by, "clip_norm": args.clip_norm}


def momentum_line(args: Namespace, share: float) -> str:
    """Return the line at the start of a run about the mode of momentum; empty if the optimizer applies it.

    ``share`` is the share of entries that arrive in a step; 0 where it is not known.
    """
    fades = 0 if args.leak else fading(share)
    fade = f", and {fades:.2%} of what waits fades in each step" if fades else ""
    before = f"momentum {args.momentum} enters before entries are selected"
    return {
        TRAVELLING: f"{args.optimizer} divides by second moments that travel with the entries (--momentum-by arrival "
        "sends none)",
        ARRIVAL: f"{args.optimizer} makes up for the steps that an entry has waited (--momentum-by local takes them as "
        "they come)",
        "matched": f"{before}, less of it for sums that are late{fade} (--momentum-by global applies all, local leaves "
        "it to sgd)",
        "global": f"{before} (--momentum-by local leaves it to sgd)",
    }.get(args.momentum_by, "")
