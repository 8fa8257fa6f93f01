"""The options of a run: its device and precision, its checkpoints, and whether it goes on when ranks are lost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from sparse_mpi.checkpoint.manifest import NAME
from sparse_mpi.comm import Comm, conversion
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.tools.command_line import folder, integer, new_folder

TRANSPORTS = ("auto", *conversion.TRANSPORTS)
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "bf16")


def extend_device(parser: ArgumentParser) -> None:
    """Add the options."""
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


FOLDER = "checkpoints"  # within the folder of a run
NEWEST = True  # --resume without a value


def extend_checkpoints(parser: ArgumentParser) -> None:
    """Add the options."""
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
    """Resolve where a run is resumed from, and where its results and checkpoints go."""
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


# Options that take messages beside a step, which nothing would repeat
NOT_ELASTIC = ("plan", "dense_warmup", "watch_every", "check_every")
COPY_EVERY = 200  # steps


def extend_elastic(parser: ArgumentParser) -> None:
    """Add the options."""
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
    """Fill in defaults, and reject what has no effect, or cannot go on."""
    for option in ("copy_every", "min_ranks", "spares"):
        if getattr(args, option) is not None and not args.elastic:
            parser.error(f"argument --{option.replace('_', '-')}: no rank may be lost without --elastic; add it")
    if args.elastic:
        wrong = [name for name in NOT_ELASTIC if getattr(args, name)] + ["algo"] * (args.algo == "auto")
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
