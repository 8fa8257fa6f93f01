"""The identity of a run, which a checkpoint must share to be resumed from, and options that may differ."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from sparse_train.options.reduction import AUTO, PLAN
from sparse_train.tasks.task import Task

AMOUNT = ("density", "k")  # one of them
FIXED = (
    "data",
    "tiny",
    "algo",
    "selector",
    "wire",
    "residual",
    "rank",
    "optimizer",
    "beta1",
    "feedback",
    "leak",
    "arrival",
    "seed",
    "bucket_mb",
    "local_steps",
    "fragments",
    "fragment_delay",
    "fragment_alpha",
)
HARMLESS = (  # options that may change without a message: where things are, when a run ends, what is shown
    "data_dir",
    "plan",  # whose content tells it
    "threads",
    "max_steps",
    "check_every",
    "watch_every",
    "out",
    "log_every",
    "plot",
    "timeline",
    "progress",
    "checkpoint_every",
    "checkpoint_dir",
    "keep",
    "resume",
    "elastic",
    "copy_every",
    "min_ranks",
    "spares",
)


def identity_of(program: str, args: Namespace, task: Task) -> dict[str, Any]:
    """Return what a run must share with a checkpoint to go on from it, by option where there is one.

    Raises:
        OSError: the file of ``args.plan`` cannot be read.
    """
    tensors = [(name, tuple(tensor.shape)) for name, tensor in task.model.state_dict().items()]
    size = sum(parameter.numel() for parameter in task.model.parameters())
    plan = sha256(args.plan.read_bytes()).hexdigest()[:16] if isinstance(args.plan, Path) else args.plan
    return {
        "program": program,
        "model": f"{type(task.model).__name__} of {size} parameters, {sha256(repr(tensors).encode()).hexdigest()[:8]}",
        "data fingerprint": task.fingerprint,
        "plan": plan,  # before the algorithm, which is no option of a planned run
        **{name: getattr(args, name) for name in FIXED},
        "k" if args.k else "density": args.k or args.density,
        "momentum of dgc": args.correction,
    }


def check_identity(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ValueError unless the checkpoint ``path``, whose identity was ``saved``, is of a run like this."""
    saved = _renamed(saved)
    for name in dict.fromkeys((*wanted, *saved)):
        if saved.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} is of a run with {name} {saved.get(name)}, but this one has {wanted.get(name)}; resume with "
                "what it was saved with, or leave out --resume to start a new run"
            )


def _renamed(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``saved`` with today's names and options.

    It may be from when there was no --arrival, --leak or --beta1, or even from when --feedback was --memory and --algo
    auto made a plan.
    """
    saved = {"arrival": False, "leak": 0.0, "beta1": 0.9, **saved}
    if "memory" not in saved:
        return saved
    planned = {"algo": PLAN, "plan": AUTO} if saved["algo"] == AUTO else {}
    others = {name: value for name, value in saved.items() if name != "memory"}
    return others | {"feedback": saved["memory"]} | planned


def options_of(args: Namespace) -> dict[str, str]:
    """Return, as text, the options that may differ in a resumed run but change its result."""
    others = {*AMOUNT, *FIXED, *HARMLESS}
    return {name: str(value) for name, value in vars(args).items() if name not in others}


def changes(saved: Mapping[str, str], args: Namespace) -> str:
    """Return a line about options that differ from those ``saved``; it is empty if none do."""
    now = options_of(args)
    other = [f"{name} {now.get(name)} instead of {was}" for name, was in saved.items() if now.get(name) != was]
    return f"with other options than before: {', '.join(other)}" if other else ""
