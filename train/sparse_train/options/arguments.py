"""The options of a run: its device and precision, its checkpoints, and whether it goes on when ranks are lost.

The command line that all training programs share; each brings its settings for every data set.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.checkpoint.manifest import NAME
from sparse_mpi.cli.values import FIGURES, Parser, Value, folder, integer, new_folder, number
from sparse_mpi.comm import conversion
from sparse_mpi.reduction.arguments import usual_density, words
from sparse_mpi.training.adam_steps import TRAVELLING
from sparse_train.options import local, reduction
from sparse_train.options.optimization import OPTIMIZERS, SCHEDULES, spelled_option

MOST_USED = (  # options that --help shows; --help-all shows all
    *("--algo", "--density", "--local-steps", "--task", "--data", "--tiny"),
    *("--epochs", "--batch-size", "--optimizer", "--lr", "--out"),
)
TRANSPORTS = ("auto", *conversion.TRANSPORTS)
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "bf16")
FOLDER = "checkpoints"  # folder within that of a run
NEWEST = True  # --resume without a value
# Options that take messages beside a step, which nothing would repeat
NOT_ELASTIC = ("plan", "dense_warmup", "watch_every", "check_every")
COPY_EVERY = 200  # steps


def extend_device(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("device").add_argument
    text = "compute, select and merge there: a GPU for each rank of a node in turn, or the one that the scheduler left "
    text += "visible; auto takes GPUs where all ranks have one, and CuPy (default: auto)"
    add("--device", choices=DEVICES, default="auto", help=text)
    text = "what carries reductions of GPUs; auto takes NCCL where MPI takes no device pointers and each of several "
    text += "ranks has its own GPU (default: auto)"
    add("--transport", choices=TRANSPORTS, default="auto", help=text)
    text = "of the forward and backward passes; bf16 keeps weights and gradients in float32 (default: float32)"
    add("--precision", choices=PRECISIONS, default="float32", help=text)
    text = "choose kernels of cuDNN, cuBLAS and torch that give the same bits each time, where there are any; slower. "
    text += "Without it runs on GPUs differ, and so does one that is resumed; on CPUs they do not"
    add("--deterministic", action="store_true", help=text)


def extend_checkpoints(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("checkpoints").add_argument
    text = "write a checkpoint every N steps, at the end and on SIGTERM or SIGUSR1 (default: 0, never)"
    add("--checkpoint-every", type=integer(0), default=0, metavar="N", help=text)
    text = f"folder for them (default: OUT/{FOLDER})"
    add("--checkpoint-dir", type=new_folder("runs/vgg/checkpoints"), metavar="DIR", help=text)
    add("--keep", type=integer(1), metavar="N", help="how many to keep (default: 2)")
    text = "go on from a checkpoint or from the newest of a run, whose folder DIR is; without DIR from the newest in "
    text += "--checkpoint-dir, or from scratch if there is none"
    add("--resume", type=folder("runs/vgg"), nargs="?", const=NEWEST, metavar="DIR", help=text)


def resolve_checkpoints(parser: ArgumentParser, args: Namespace, new: Path) -> None:
    if args.keep and not args.checkpoint_every:
        parser.error("argument --keep: no checkpoints are written without --checkpoint-every; add it")
    if args.checkpoint_dir and not args.checkpoint_every and args.resume is None:
        parser.error(
            "argument --checkpoint-dir: no checkpoints are written or read without --checkpoint-every or --resume; "
            "add one of them"
        )
    args.keep = args.keep or 2
    if args.resume is NEWEST and not args.out and not args.checkpoint_dir:
        parser.error("argument --resume: say where from, or give --out or --checkpoint-dir as in the run before")
    there = args.checkpoint_dir
    if args.resume not in (None, NEWEST):
        inside = args.resume / FOLDER
        args.resume = inside if inside.is_dir() else args.resume
        there = there or (args.resume.parent if NAME.fullmatch(args.resume.name) else args.resume)
    if args.out is None:
        args.out = there.parent if there and there.name == FOLDER else new
        args.checkpoint_dir = there or args.out / FOLDER
    args.checkpoint_dir = args.checkpoint_dir or args.out / FOLDER


def extend_elastic(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("loss of ranks").add_argument
    text = "let the other ranks go on where one is lost; start with python -m sparse_mpi run --elastic"
    add("--elastic", action="store_true", help=text)
    text = "copy each rank's residual to the next rank once in N steps, a part in each, so that it is not lost with "
    text += f"the rank; 0: never (default: {COPY_EVERY})"
    add("--copy-every", type=integer(0), metavar="N", help=text)
    text = "with fewer ranks than N left, write a checkpoint and end with status 75 (default: 1)"
    add("--min-ranks", type=integer(1), metavar="N", help=text)
    text = "have the last N of the ranks wait, and take the places of lost ones (default: 0)"
    add("--spares", type=integer(0), metavar="N", help=text)


def resolve_elastic(parser: ArgumentParser, args: Namespace) -> None:
    for option in ("copy_every", "min_ranks", "spares"):
        if getattr(args, option) is not None and not args.elastic:
            parser.error(f"argument {spelled_option(option)}: no rank may be lost without --elastic; add it")
    if args.elastic:
        wrong = [name for name in NOT_ELASTIC if getattr(args, name)] + ["algo"] * (args.algo == "auto")
        if wrong:
            what = f"{spelled_option(wrong[0])} {getattr(args, wrong[0])}"
            parser.error(f"argument --elastic: {what} needs all ranks to stay; leave out one of them")
    args.copy_every = COPY_EVERY if args.copy_every is None else args.copy_every
    args.min_ranks = args.min_ranks or 1
    args.spares = args.spares or 0


@dataclass(frozen=True)
class Settings:
    epochs: int
    batch_size: int  # samples per rank
    lr: float
    density: float | None = None  # None: the algorithm's own
    warmup_epochs: float = 0
    milestones: tuple[float, ...] = ()  # epochs of the schedule steps
    weight_decay: float = 0.0
    momentum: float = 0.9  # momentum of the optimizer sgd
    beta1: float = 0.9  # first beta of adam and adamw, whose second is beta2
    beta2: float = 0.999
    lr_times_ranks: bool = False  # True: the peak is lr x ranks; no option, and not for an --lr given
    optimizer: str = "sgd"
    schedule: str = "steps"
    decay: float = 1.0  # factor of the schedule exponential
    clip_norm: float | None = None
    warmup_scales: bool = False  # True: warmup_epochs scales with the epochs; no option, and not for given numbers


def new_file(example: str, suffixes: Sequence[str]) -> Value[Path]:
    """Return a converter to the path of a file with one of these suffixes; its folder is made if need be."""

    def read(text: str) -> Path:
        if not text or Path(text).is_dir() or Path(text).suffix not in suffixes:
            raise ValueError
        return Path(text)

    return Value(read, f"a file that ends in {', '.join(suffixes)}", example)


class Tiny(NamedTuple):
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
    parser = Parser(description=description, most_used=MOST_USED)
    reduction.extend(parser, lambda field: _defaults(settings, field))
    local.extend(parser)
    _add_data(parser, settings, folders, tiny)
    extend(parser)
    _add_training(parser, settings)
    extend_device(parser)
    _add_run(parser)
    extend_checkpoints(parser)
    extend_elastic(parser)
    args = parser.parse_args(argv)
    local.resolve(parser, args)
    reduction.resolve_algorithm(parser, args)
    _fill_in(parser, args, settings, tiny)
    reduction.resolve_clipping(parser, args)
    reduction.resolve_buckets(parser, args)
    args.data_dir = args.data_dir or Path(folders[args.data])
    new = Path("runs") / file_name(f"{program}-{args.data}-{args.algo}-{datetime.now():%Y%m%d-%H%M%S}")
    resolve_checkpoints(parser, args, new)
    resolve_elastic(parser, args)
    try:
        check(args)
    except ValueError as error:
        parser.error(f"argument {error}")
    return args


def _fill_in(parser: ArgumentParser, args: Namespace, settings: Mapping[str, Settings], tiny: Tiny) -> None:
    args.data = args.data or (tiny.data if args.tiny else next(iter(settings)))
    if not args.tiny and args.data not in settings:
        parser.error(f"argument --data: {args.data} is for --tiny alone; add it, or take {', '.join(settings)}")
    chosen = tiny.settings if args.tiny else settings[args.data]
    # A step of its own has one rank's batch
    args.lr_times_ranks = chosen.lr_times_ranks and args.lr is None and not args.local_steps
    args.warmup_scales = chosen.warmup_scales and args.warmup_epochs is None
    given = {field.name for field in fields(Settings) if getattr(args, field.name) is not None}
    amount = args.k or isinstance(args.plan, Path)
    for field in fields(Settings):
        if field.name not in given and not (field.name == "density" and amount):
            setattr(args, field.name, getattr(chosen, field.name))
    reduction.resolve_momentum(parser, args)
    if args.density is None and not amount:
        args.density = usual_density(words(args.algo)[0], args.momentum_by == TRAVELLING)
    if args.warmup_scales:
        args.warmup_epochs *= args.epochs / chosen.epochs
    for name in ("beta1", "beta2"):
        if name in given and (args.optimizer == "sgd" or not getattr(args, name) < 1):
            got = f"{getattr(args, name)} for {args.optimizer}"
            parser.error(f"argument --{name}: must be below 1, for adam or adamw, got {got}")
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
    text = (
        "what it does then: falls in steps, in a line to 0 at the end, by a factor each epoch, to a tenth by a cosine "
    )
    group.add_argument("--schedule", choices=tuple(SCHEDULES), help=text + _defaults(settings, "schedule"))
    add("--milestones", number, "E", "epochs after which it falls to a tenth, in steps", nargs="*")
    add("--decay", number, "F", "that factor, of exponential")
    text = "share of its last step that sgd adds; --momentum-by says where"
    add("--momentum", number, "M", text)
    add("--beta1", number, "B", "share of the mean gradient that adam and adamw keep from step to step, below 1")
    add("--beta2", number, "B", "share of the mean of its square that they keep")
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
    text = "draw when a step of rank 0 did what: its passes, and the reduction of every bucket; PNG, SVG or PDF. "
    text += "The JSON file beside it has all ranks, for Perfetto"
    add("--timeline", type=new_file("timeline.png", FIGURES), metavar="FILE", help=text)
    text = "show a bar on rank 0 (default: --progress)"
    add("--progress", action=BooleanOptionalAction, default=True, help=text)


def _defaults(settings: Mapping[str, Settings], field: str) -> str:
    values = {name: _show(getattr(chosen, field)) for name, chosen in settings.items()}
    if field == "density":
        own = f"{DENSITY}, elect {usual_density('elect')}, with second moments {usual_density('elect', True)}"
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
