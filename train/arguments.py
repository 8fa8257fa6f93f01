"""The command line that all training programs share; each brings its settings for every data set."""

from __future__ import annotations

import argparse
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import sparse_mpi
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
    milestones: tuple[float, ...]
    weight_decay: float
    momentum: float = 0.9
    lr_times_ranks: bool = False  # whether the peak is lr x ranks; no option, and not for an --lr given


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
    argv: Sequence[str] | None = None,
) -> Namespace:
    """The options of a training program as attributes; those of `Settings` filled in for the chosen data set.

    Args:
        program: its name, for the folder of results.
        description: what it does, for --help.
        settings: its settings for each data set it can train on; the first is the default.
        folders: where each data set is looked for.
        argv: the command line; None takes the process's own.
    """
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    _add_reduction(parser, settings)
    _add_data(parser, settings, folders)
    _add_training(parser, settings)
    _add_run(parser)
    args = parser.parse_args(argv)
    _check_algorithm(parser, args)
    chosen = settings[args.data]
    args.lr_times_ranks = chosen.lr_times_ranks and args.lr is None
    for field in fields(Settings):
        if getattr(args, field.name) is None and not (field.name == "density" and (args.k or args.plan)):
            setattr(args, field.name, getattr(chosen, field.name))
    _settle_memory(parser, args)
    args.data_dir = args.data_dir or Path(folders[args.data])
    args.out = args.out or Path("runs") / f"{program}-{args.data}-{args.algo}-{datetime.now():%Y%m%d-%H%M%S}"
    return args


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
    add("--profile-steps", type=_integer(1), metavar="N", help=text)
    text = "what picks the entries to send (default: the algorithm's own)"
    add("--selector", choices=tuple(sparse_mpi.SELECTORS), help=text)
    text = "rank of the matrices of a low-rank algorithm (default: 4)"
    add("--rank", type=_integer(1), metavar="R", help=text)
    text = "share of the gradient's entries to reduce " + _defaults(settings, "density")
    add_amount("--density", type=_share, metavar="D", help=text)
    add_amount("--k", type=_integer(1), metavar="K", help="their number, instead of --density")
    text = "reduce all entries in the first N steps (default: 0)"
    add("--dense-warmup", type=_integer(0), default=0, metavar="N", help=text)
    text = (
        "densities of the first epochs, separated by commas, or in how many epochs it falls to --density (default: 0)"
    )
    add("--density-warmup", type=_densities, default=0, metavar="D,D,.. | E", help=text)
    text = "what becomes of what is not sent: added to the next gradient, its momentum too, nothing (default: residual)"
    add("--memory", choices=tuple(sparse_mpi.MEMORIES), default="residual", help=text)
    text = "L2 norm to clip gradients to, C / sqrt(ranks) on each rank (default: no clipping)"
    add("--clip-norm", type=_positive, metavar="C", help=text)
    text = "let gradients add up in the residual's own memory (default: wherever that is possible)"
    add("--zero-copy", action=BooleanOptionalAction, default=None, help=text)
    text = "every N steps assert that ranks agree and nothing is lost; slow (default: 0, never)"
    add("--check-every", type=_integer(0), default=0, metavar="N", help=text)


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


def _settle_memory(parser: ArgumentParser, args: Namespace) -> None:
    """Work in place where that is possible, and let the memory have the momentum if it is one for momentum."""
    possible = args.memory == "residual" and args.clip_norm is None
    if args.zero_copy and not possible:
        parser.error("argument --zero-copy: needs --memory residual and no --clip-norm")
    args.zero_copy = possible if args.zero_copy is None else args.zero_copy
    args.correction = 0.0  # momentum of the memory
    if args.memory == "dgc":
        if args.momentum >= 1:
            parser.error(f"argument --momentum: must be below 1 with --memory dgc, got {args.momentum}")
        args.correction, args.momentum = args.momentum, 0.0


def memory_options(args: Namespace) -> dict[str, Any]:
    """What `sparse_mpi.SparseAllreduce` is to be told of memory, as `parse` has it."""
    memory = sparse_mpi.MomentumCorrection(args.correction) if args.memory == "dgc" else args.memory
    return {"memory": memory, "clip_norm": args.clip_norm, "in_place": args.zero_copy}


def _add_data(parser: ArgumentParser, settings: Mapping[str, Settings], folders: Mapping[str, str]) -> None:
    add = parser.add_argument_group("data").add_argument
    first = next(iter(settings))
    add("--data", choices=tuple(settings), default=first, help=f"(default: {first})")
    text = f"folder of its files (default: {', '.join(f'{name} {folders[name]}' for name in settings)})"
    add("--data-dir", type=Path, metavar="DIR", help=text)
    text = "resize images to S x S (default: leave them as they are)"
    add("--image-size", type=_integer(1), metavar="S", help=text)
    text = "shift and, where it makes sense, mirror training images at random (default: --augment)"
    add("--augment", action=BooleanOptionalAction, default=True, help=text)


def _add_training(parser: ArgumentParser, settings: Mapping[str, Settings]) -> None:
    group = parser.add_argument_group("training")

    def add(option: str, convert: Callable[[str], Any], metavar: str, text: str, nargs: str | None = None) -> None:
        text += " " + _defaults(settings, option.removeprefix("--").replace("-", "_"))
        group.add_argument(option, type=convert, metavar=metavar, nargs=nargs, help=text)

    add("--epochs", _integer(1), "N", "passes over the training data")
    text = "stop after N steps, evaluate and finish (default: no limit)"
    group.add_argument("--max-steps", type=_integer(1), metavar="N", help=text)
    add("--batch-size", _integer(2), "B", "images a step on each rank")
    add("--lr", _number, "LR", "learning rate at its peak")
    add("--warmup-epochs", _number, "E", "epochs in which it climbs there from LR / ranks")
    add("--milestones", _number, "E", "epochs after which it falls to a tenth", nargs="*")
    add(
        "--momentum", _number, "M", "momentum of SGD; with --memory dgc of the gradients of each rank, and SGD has none"
    )
    add("--weight-decay", _number, "W", "weight decay of SGD")
    text = "of weights, shards and augmentation (default: 1)"
    group.add_argument("--seed", type=_integer(0), default=1, metavar="S", help=text)


def _add_run(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    text = "torch threads a rank (default: the rank's share of its host's CPUs)"
    add("--threads", type=_integer(1), metavar="T", help=text)
    text = "folder for metrics.jsonl, TensorBoard events and plot (default: runs/PROGRAM-DATA-ALGO-TIME)"
    add("--out", "--log-dir", type=Path, metavar="DIR", help=text)
    text = "write the metrics of every Nth step (default: 10)"
    add("--log-every", type=_integer(1), default=10, metavar="N", help=text)
    add("--plot", action="store_true", help="draw loss, accuracy and traffic into plot.png at the end")
    text = "show a bar on rank 0 (default: --progress)"
    add("--progress", action=BooleanOptionalAction, default=True, help=text)


def _defaults(settings: Mapping[str, Settings], field: str) -> str:
    """The default of an option for --help: one value, or one for each data set."""
    values = {name: _show(getattr(chosen, field)) for name, chosen in settings.items()}
    if field == "lr":
        values = {name: text + " x ranks" * settings[name].lr_times_ranks for name, text in values.items()}
    if len(set(values.values())) == 1:
        return f"(default: {next(iter(values.values()))})"
    return f"(default: {', '.join(f'{name} {text}' for name, text in values.items())})"


def _show(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _integer(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ArgumentTypeError(f"must be an integer >= {least}, got {text}")
        return value

    return convert


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be a number >= 0, got {text}")
    return value


def _share(text: str) -> float:
    if not 0 < _number(text) <= 1:
        raise ArgumentTypeError(f"must be in (0, 1], got {text}")
    return float(text)


def _positive(text: str) -> float:
    if not _number(text) > 0:
        raise ArgumentTypeError(f"must be a number > 0, got {text}")
    return float(text)


def _densities(text: str) -> int | tuple[float, ...]:
    """A number of epochs, or a density for each of the first epochs."""
    if text.isdecimal():
        return int(text)
    return tuple(_share(part) for part in text.split(","))
