"""The command line that all training programs share; each brings its settings for every data set."""

from __future__ import annotations

import argparse
import math
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import checkpoints
import sparse_mpi
from converters import densities, figure, integer, norm, number, share
from optimizers import OPTIMIZERS
from schedule import SCHEDULES
from sparse_mpi.arguments import takes
from sparse_mpi.plan.planners import ORACLES, PLANNERS

AUTO = "auto"  # in place of an algorithm: profile the job and plan


@dataclass(frozen=True)
class Settings:
    """What a program trains with on a data set: the defaults of the options of these names."""

    density: float
    epochs: int
    batch_size: int  # per rank
    lr: float
    warmup_epochs: float
    milestones: tuple[float, ...] = ()  # of the schedule steps
    weight_decay: float = 0.0
    momentum: float = 0.9  # of the optimizer sgd
    lr_times_ranks: bool = False  # whether the peak is lr x ranks; no option, and not for an --lr given
    optimizer: str = "sgd"
    schedule: str = "steps"
    decay: float = 1.0  # of the schedule exponential
    clip_norm: float | None = None
    warmup_scales: bool = False  # whether warmup_epochs goes with the number of epochs; no option, nor for those given


class Tiny(NamedTuple):
    """What a program trains with when it is told to be quick."""

    data: str
    settings: Settings


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not a page of usage from every rank."""
        print(f"{self.prog}: error: {message} (--help explains all options)", file=sys.stderr)
        sys.exit(2)


def parse(
    program: str,
    description: str,
    settings: Mapping[str, Settings],
    folders: Mapping[str, str],
    tiny: Tiny,
    extend: Callable[[ArgumentParser], None],
    argv: Sequence[str] | None = None,
) -> Namespace:
    """The options of a training program as attributes; those of `Settings` filled in for the chosen data set.

    Args:
        program: its name, for the folder of results.
        description: what it does, for --help.
        settings: its settings for each data set it can train on; the first is the default.
        folders: where each data set is looked for.
        tiny: in place of all settings with --tiny.
        extend: adds the program's own options.
        argv: the command line; None takes the process's own.
    """
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    _add_reduction(parser, settings)
    _add_data(parser, settings, folders, tiny)
    extend(parser)
    _add_training(parser, settings)
    _add_run(parser)
    checkpoints.extend(parser)
    args = parser.parse_args(argv)
    _check_algorithm(parser, args)
    _fill_in(parser, args, settings, tiny)
    _settle_memory(parser, args)
    _settle_buckets(parser, args)
    args.data_dir = args.data_dir or Path(folders[args.data])
    new = Path("runs") / f"{program}-{args.data}-{args.algo}-{datetime.now():%Y%m%d-%H%M%S}"
    checkpoints.settle(parser, args, new)
    return args


def _fill_in(parser: ArgumentParser, args: Namespace, settings: Mapping[str, Settings], tiny: Tiny) -> None:
    """Give every field of `Settings` a value, and refuse a given one that would have no effect."""
    args.data = args.data or (tiny.data if args.tiny else next(iter(settings)))
    if not args.tiny and args.data not in settings:
        parser.error(f"argument --data: {args.data} is for --tiny alone; add it, or take {', '.join(settings)}")
    chosen = tiny.settings if args.tiny else settings[args.data]
    args.lr_times_ranks = chosen.lr_times_ranks and args.lr is None
    args.warmup_scales = chosen.warmup_scales and args.warmup_epochs is None
    given = {field.name for field in fields(Settings) if getattr(args, field.name) is not None}
    for field in fields(Settings):
        if field.name not in given and not (field.name == "density" and (args.k or args.plan)):
            setattr(args, field.name, getattr(chosen, field.name))
    if args.warmup_scales:
        args.warmup_epochs *= args.epochs / chosen.epochs
    for name, choice, needed in (
        ("momentum", "optimizer", "sgd"),
        ("milestones", "schedule", "steps"),
        ("decay", "schedule", "exponential"),
    ):
        if name in given and getattr(args, choice) != needed:
            other = getattr(args, choice)
            parser.error(f"argument --{name}: needs --{choice} {needed}, has no effect on {other}; leave it out")


def _add_reduction(parser: ArgumentParser, settings: Mapping[str, Settings]) -> None:
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
    text = "rank of the matrices of a low-rank algorithm (default: 4)"
    add("--rank", type=integer(1), metavar="R", help=text)
    text = "share of the gradient's entries to reduce " + _defaults(settings, "density")
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
    text = "L2 norm to clip gradients to, C / sqrt(ranks) on each rank; inf: no clipping " + _defaults(
        settings, "clip_norm"
    )
    add("--clip-norm", type=norm, metavar="C", help=text)
    text = "let gradients add up in the residual's own memory (default: wherever that is possible)"
    add("--zero-copy", action=BooleanOptionalAction, default=None, help=text)
    text = "reduce while the backward pass still runs, bucket by bucket (default: unless there is a plan)"
    add("--overlap", action=BooleanOptionalAction, default=None, help=text)
    text = "10^6 bytes of gradients a bucket; 0 puts all in one, as a plan and clipping do (default: 25)"
    add("--bucket-mb", type=number, metavar="MB", help=text)
    text = "every N steps assert that ranks agree and nothing is lost; slow (default: 0, never)"
    add("--check-every", type=integer(0), default=0, metavar="N", help=text)


def _check_algorithm(parser: ArgumentParser, args: Namespace) -> None:
    """Settle what reduces, and refuse options that would have no effect."""
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
    return {option: value for option in ("selector", "rank") if (value := getattr(args, option)) is not None}


def _settle_buckets(parser: ArgumentParser, args: Namespace) -> None:
    """One bucket for what needs the whole gradient, else several."""
    reasons = {"a plan": args.plan or args.algo == AUTO, "clipping": args.clip_norm is not None}
    whole = [reason for reason, holds in reasons.items() if holds]
    for option in ("overlap", "bucket_mb"):
        if whole and getattr(args, option):
            name = option.replace("_", "-")
            parser.error(f"argument --{name}: {whole[0]} needs the whole gradient; leave out --{name}, or that")
    args.overlap = not whole if args.overlap is None else args.overlap
    args.bucket_mb = 0.0 if whole else 25.0 if args.bucket_mb is None else args.bucket_mb


def _settle_memory(parser: ArgumentParser, args: Namespace) -> None:
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


def memory_options(args: Namespace) -> dict[str, Any]:
    """What `sparse_mpi.SparseAllreduce` is to be told of memory, as `parse` has it."""
    memory = sparse_mpi.MomentumCorrection(args.correction) if args.memory == "dgc" else args.memory
    return {"memory": memory, "clip_norm": args.clip_norm, "in_place": args.zero_copy}


def _add_data(parser: ArgumentParser, settings: Mapping[str, Settings], folders: Mapping[str, str], tiny: Tiny) -> None:
    add = parser.add_argument_group("data").add_argument
    known = tuple(dict.fromkeys((*settings, tiny.data)))
    add("--data", choices=known, help=f"(default: {next(iter(settings))}, with --tiny {tiny.data})")
    text = f"folder of its files (default: {', '.join(f'{name} {folders[name]}' for name in known)})"
    add("--data-dir", type=Path, metavar="DIR", help=text)
    text = "see that all works: a small model and a few steps, with defaults of its own for what is not given"
    add("--tiny", action="store_true", help=text)


def _add_training(parser: ArgumentParser, settings: Mapping[str, Settings]) -> None:
    group = parser.add_argument_group("training")

    def add(option: str, convert: Callable[[str], Any], metavar: str, text: str, nargs: str | None = None) -> None:
        text += " " + _defaults(settings, option.removeprefix("--").replace("-", "_"))
        group.add_argument(option, type=convert, metavar=metavar, nargs=nargs, help=text)

    add("--epochs", integer(1), "N", "passes over the training data")
    text = "stop after N steps, evaluate and finish (default: no limit)"
    group.add_argument("--max-steps", type=integer(1), metavar="N", help=text)
    add("--batch-size", integer(2), "B", "samples a step on each rank")
    text = "what makes weights of mean gradients " + _defaults(settings, "optimizer")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help=text)
    add("--lr", number, "LR", "learning rate at its peak")
    add("--warmup-epochs", number, "E", "epochs in which it climbs there from LR / ranks")
    text = "what it does then: falls in steps, in a line to 0 at the end, by a factor each epoch "
    group.add_argument("--schedule", choices=tuple(SCHEDULES), help=text + _defaults(settings, "schedule"))
    add("--milestones", number, "E", "epochs after which it falls to a tenth, in steps", nargs="*")
    add("--decay", number, "F", "that factor, of exponential")
    add("--momentum", number, "M", "of sgd; with --memory dgc of the gradients of each rank, and sgd has none")
    add("--weight-decay", number, "W", "weight decay")
    text = "of weights, shards and all that is drawn at random (default: 1)"
    group.add_argument("--seed", type=integer(0), default=1, metavar="S", help=text)


def _add_run(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    text = "torch threads a rank (default: the rank's share of its host's CPUs)"
    add("--threads", type=integer(1), metavar="T", help=text)
    text = "folder for metrics.jsonl, TensorBoard events and plot (default: runs/PROGRAM-DATA-ALGO-TIME)"
    add("--out", "--log-dir", type=Path, metavar="DIR", help=text)
    text = "write the metrics of every Nth step (default: 10)"
    add("--log-every", type=integer(1), default=10, metavar="N", help=text)
    add("--plot", action="store_true", help="draw loss, score and traffic into plot.png at the end")
    text = "draw what a step of rank 0 did when: its passes, and the reduction of every bucket; PNG, SVG or PDF"
    add("--timeline", type=figure, metavar="FILE", help=text)
    text = "show a bar on rank 0 (default: --progress)"
    add("--progress", action=BooleanOptionalAction, default=True, help=text)


def _defaults(settings: Mapping[str, Settings], field: str) -> str:
    """The default of an option for --help: one value, or one for each data set."""
    values = {name: _show(getattr(chosen, field)) for name, chosen in settings.items()}
    if field == "lr":
        values = {name: text + " x ranks" * settings[name].lr_times_ranks for name, text in values.items()}
    if field == "warmup_epochs":
        for name, chosen in settings.items():
            values[name] += f" of {chosen.epochs}" * chosen.warmup_scales
    if len(set(values.values())) == 1:
        return f"(default: {next(iter(values.values()))})"
    return f"(default: {', '.join(f'{name} {text}' for name, text in values.items())})"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
