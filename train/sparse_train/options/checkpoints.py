"""The options that say when a training run writes a checkpoint, and from which one it is resumed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from sparse_mpi.checkpoint.manifest import NAME
from sparse_mpi.tools.cli.values import folder, integer, new_folder

FOLDER = "checkpoints"  # within the folder of a run
NEWEST = True  # --resume without a value


def extend(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument_group("checkpoints").add_argument
    text = "write a checkpoint every N steps, at the end and on SIGTERM or SIGUSR1 (default: 0, never)"
    add("--checkpoint-every", type=integer(0), default=0, metavar="N", help=text)
    add(
        "--checkpoint-dir",
        type=new_folder("runs/vgg/checkpoints"),
        metavar="DIR",
        help=f"folder for them (default: OUT/{FOLDER})",
    )
    add("--keep", type=integer(1), metavar="N", help="how many to keep (default: 2)")
    text = (
        "go on from a checkpoint or from the newest of a run, whose folder DIR is; without DIR from the newest in "
        "--checkpoint-dir, or from scratch if there is none"
    )
    add("--resume", type=folder("runs/vgg"), nargs="?", const=NEWEST, metavar="DIR", help=text)


def resolve(parser: ArgumentParser, args: Namespace, new: Path) -> None:
    """Resolve where a run is resumed from, and where its results and checkpoints go.

    Args:
        parser: reports options that contradict each other.
        args: gets ``resume``, ``out``, ``checkpoint_dir`` and ``keep``.
        new: folder for the results of a run that names none and resumes none.
    """
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
