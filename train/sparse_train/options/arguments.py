"""The command line that all training programs share; each brings its settings for every data set."""

from __future__ import annotations

import re
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.reduction.arguments import usual_density
from sparse_mpi.tools.command_line import FIGURES, Parser, Value, folder, integer, new_folder, number
from sparse_train.options import local, reduction, run
from sparse_train.options.optimization import OPTIMIZERS, SCHEDULES


@dataclass(frozen=True)
class Settings:
    """The settings of a program for a data set: the defaults of the options of these names."""

    epochs: int
    batch_size: int  # per rank
    lr: float
    density: float | None = None  # None: the algorithm's own
    warmup_epochs: float = 0
    milestones: tuple[float, ...] = ()  # of the schedule steps
    weight_decay: float = 0.0
    momentum: float = 0.9  # of the optimizer sgd
    lr_times_ranks: bool = False  # whether the peak is lr x ranks; no option, and not for an --lr given
    optimizer: str = "sgd"
    schedule: str = "steps"
    decay: float = 1.0  # of the schedule exponential
    clip_norm: float | None = None
    warmup_scales: bool = False  # whether warmup_epochs goes with the number of epochs; no option, nor for those given


BETA1 = 0.9  # of Adam


def new_file(example: str, suffixes: Sequence[str]) -> Value[Path]:
    """Return a converter to the path of a file with one of these suffixes, whose folder is made if need be."""

    def read(text: str) -> Path:
        if not text or Path(text).is_dir() or Path(text).suffix not in suffixes:
            raise ValueError
        return Path(text)

    return Value(read, f"a file that ends in {', '.join(suffixes)}", example)


class Tiny(NamedTuple):
    """Data set and settings of --tiny."""

    data: str
    settings: Settings


def file_name(text: str) -> str:
    """Return a text that spells algorithms and options as a part of the name of a file."""
    return re.sub("[:=/]", "-", text)


def parse(
    program: str,
    description: str,
    settings: Mapping[str, Settings],
    folders: Mapping[str, str],
    tiny: Tiny,
    extend: Callable[[ArgumentParser], None],
    check: Callable[[Namespace], None],
    argv: Sequence[str] | None = None,
) -> Namespace:
    """Return the options of a training program, those of `Settings` filled in for the chosen data set."""
    parser = Parser(description=description)
    reduction.extend(parser, lambda field: _defaults(settings, field))
    local.extend(parser)
    reduction.extend_budget(parser)
    _add_data(parser, settings, folders, tiny)
    extend(parser)
    _add_training(parser, settings)
    run.extend_device(parser)
    _add_run(parser)
    run.extend_checkpoints(parser)
    run.extend_elastic(parser)
    args = parser.parse_args(argv)
    reduction.resolve_names(parser, args)
    local.resolve(parser, args)
    reduction.resolve_budget(parser, args)
    reduction.resolve_algorithm(parser, args)
    _fill_in(parser, args, settings, tiny)
    reduction.resolve_feedback(parser, args)
    reduction.resolve_buckets(parser, args)
    args.data_dir = args.data_dir or Path(folders[args.data])
    new = Path("runs") / file_name(f"{program}-{args.data}-{args.algo}-{datetime.now():%Y%m%d-%H%M%S}")
    run.resolve_checkpoints(parser, args, new)
    run.resolve_elastic(parser, args)
    try:
        check(args)
    except ValueError as error:
        parser.error(f"argument {error}")
    return args


def _fill_in(parser: ArgumentParser, args: Namespace, settings: Mapping[str, Settings], tiny: Tiny) -> None:
    """Give every field of `Settings` a value, and reject a given one that would have no effect."""
    args.data = args.data or (tiny.data if args.tiny else next(iter(settings)))
    if not args.tiny and args.data not in settings:
        parser.error(f"argument --data: {args.data} is for --tiny alone; add it, or take {', '.join(settings)}")
    chosen = tiny.settings if args.tiny else settings[args.data]
    # A step of its own has one rank's batch
    args.lr_times_ranks = chosen.lr_times_ranks and args.lr is None and not args.local_steps
    args.warmup_scales = chosen.warmup_scales and args.warmup_epochs is None
    given = {field.name for field in fields(Settings) if getattr(args, field.name) is not None}
    amount = args.k or isinstance(args.plan, Path) or reduction.budgeted(args)
    for field in fields(Settings):
        if field.name not in given and not (field.name == "density" and amount):
            setattr(args, field.name, getattr(chosen, field.name))
    if args.density is None and not amount:
        args.density = usual_density(args.algo.partition(":")[0])
    if args.warmup_scales:
        args.warmup_epochs *= args.epochs / chosen.epochs
    if args.beta1 is not None and (args.optimizer == "sgd" or args.beta1 >= 1):
        parser.error(f"argument --beta1: must be below 1, for adam or adamw, got {args.beta1} for {args.optimizer}")
    args.beta1 = BETA1 if args.beta1 is None else args.beta1
    for name, choice, needed in (
        ("momentum", "optimizer", "sgd"),
        ("milestones", "schedule", "steps"),
        ("decay", "schedule", "exponential"),
    ):
        if name in given and getattr(args, choice) != needed:
            other = getattr(args, choice)
            parser.error(f"argument --{name}: needs --{choice} {needed}, has no effect on {other}; leave it out")


def _add_data(parser: ArgumentParser, settings: Mapping[str, Settings], folders: Mapping[str, str], tiny: Tiny) -> None:
    add = parser.add_argument_group("data").add_argument
    known = tuple(dict.fromkeys((*settings, tiny.data)))
    add("--data", choices=known, help=f"(default: {next(iter(settings))}, with --tiny {tiny.data})")
    text = f"folder of its files (default: {', '.join(f'{name} {folders[name]}' for name in known)})"
    add("--data-dir", type=folder("~/datasets"), metavar="DIR", help=text)
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
    text = "share of its last step that sgd adds; with --feedback dgc of each rank's gradients, and sgd has none"
    add("--momentum", number, "M", text)
    text = f"share of the mean gradient that adam and adamw keep from step to step, below 1 (default: {BETA1})"
    group.add_argument("--beta1", type=number, metavar="B", help=text)
    add("--weight-decay", number, "W", "weight decay")
    text = "of weights, shards and all that is drawn at random (default: 1)"
    group.add_argument("--seed", type=integer(0), default=1, metavar="S", help=text)


def _add_run(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    text = "torch threads a rank (default: the rank's share of its host's CPUs)"
    add("--threads", type=integer(1), metavar="T", help=text)
    text = "folder for metrics.jsonl, TensorBoard events and plot (default: runs/PROGRAM-DATA-ALGO-TIME)"
    add("--out", "--log-dir", type=new_folder("runs/vgg"), metavar="DIR", help=text)
    text = "write the metrics of every Nth step (default: 10)"
    add("--log-every", type=integer(1), default=10, metavar="N", help=text)
    add("--plot", action="store_true", help="draw loss, score and traffic into plot.png at the end")
    text = "draw when a step of rank 0 did what: its passes, and the reduction of every bucket; PNG, SVG or PDF"
    add("--timeline", type=new_file("timeline.png", FIGURES), metavar="FILE", help=text)
    text = "show a bar on rank 0 (default: --progress)"
    add("--progress", action=BooleanOptionalAction, default=True, help=text)


def _defaults(settings: Mapping[str, Settings], field: str) -> str:
    """Return the text of --help about the default of an option: one value, or one for each data set."""
    values = {name: _show(getattr(chosen, field)) for name, chosen in settings.items()}
    if field == "density":
        own = f"{DENSITY}, elect {usual_density('elect')}"
        published = [f"{name} {text}" for name, text in values.items() if settings[name].density]
        return f"(default: {', '.join([own, *published])})"
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
