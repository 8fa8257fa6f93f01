"""Write the checkpoints of a training run when they are due, and find the one to resume from, of the same run."""

from __future__ import annotations

import io
import pickle
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sparse_mpi import checkpoint
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_mpi.fault_tolerance import together
from sparse_train.options.arguments import NEWEST
from sparse_train.ranks.job import Interruption, JobError, agreed
from sparse_train.records.metrics import FILE, Metrics, Resumed
from sparse_train.tasks.task import Task

AMOUNT = ("density", "k")  # one of them
FIXED = (
    *("data", "tiny", "algo", "selector", "wire", "residual", "rank", "optimizer", "beta1", "feedback", "leak"),
    *("momentum_by", "seed", "bucket_mb", "local_steps"),
)
HARMLESS = (  # options that may change without a message: folders, the end of a run, output
    "plan",  # the plan's content is compared
    *("data_dir", "threads", "max_steps", "check_every", "watch_every", "out", "log_every", "plot", "timeline"),
    *("progress", "checkpoint_every", "checkpoint_dir", "keep", "resume", "elastic", "copy_every", "min_ranks"),
    "spares",
)


def identity_of(program: str, args: Namespace, task: Task) -> dict[str, Any]:
    """Return the values that a run and its checkpoint must share, by option where there is one.

    Raises OSError: the file of ``args.plan`` cannot be read.
    """
    tensors = [(name, tuple(tensor.shape)) for name, tensor in task.model.state_dict().items()]
    size = sum(parameter.numel() for parameter in task.model.parameters())
    plan = sha256(args.plan.read_bytes()).hexdigest()[:16] if isinstance(args.plan, Path) else args.plan
    return {
        "program": program,
        "model": f"{type(task.model).__name__} of {size} parameters, {sha256(repr(tensors).encode()).hexdigest()[:8]}",
        "data fingerprint": task.fingerprint,
        "plan": plan,  # stands before the algorithm, which is no option of a planned run
        **{name: getattr(args, name) for name in FIXED},
        "k" if args.k else "density": args.k or args.density,
        "momentum of dgc": args.correction,
    }


def check_identity(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys((*wanted, *saved)):
        if saved.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} is of a run with {name} {saved.get(name)}, but this one has {wanted.get(name)}; resume with "
                "what it was saved with, or leave out --resume to start a new run; if a program of sparse_mpi 0.3 "
                "wrote it, resume it once with that of 0.4"
            )


def options_of(args: Namespace) -> dict[str, str]:
    """Return, as text, the options that may differ in a resumed run but change its result."""
    others = {*AMOUNT, *FIXED, *HARMLESS}
    return {name: str(value) for name, value in vars(args).items() if name not in others}


def changes(saved: Mapping[str, str], args: Namespace) -> str:
    """Return a line about options that differ from the ``saved`` ones; it is empty if none do."""
    now = options_of(args)
    other = [f"{name} {now.get(name)} instead of {was}" for name, was in saved.items() if now.get(name) != was]
    return f"with other options than before: {', '.join(other)}" if other else ""


class State(NamedTuple):
    """The state of a run; on the same number of ranks it goes on to the same bits."""

    shared: dict[str, Any]  # the same on all ranks: types that torch.save takes and torch.load gives with weights_only
    own: dict[str, Any]  # this rank's state, see `sparse_mpi.checkpoint.trees`


class Found(NamedTuple):
    path: Path
    step: int
    identity: dict[str, Any]
    shared: dict[str, Any]  # see `State`
    own: list[dict[str, Any]]  # states of the old ranks that this one goes on for
    ranks: int  # number of ranks that wrote it


class Checkpoints:
    def __init__(self, args: Namespace, identity: dict[str, Any], comm: Comm, metrics: Metrics) -> None:
        self._folder, self._keep = args.checkpoint_dir, args.keep
        self._identity, self._comm, self._metrics = identity, comm, metrics
        self._options = options_of(args)
        self._interruption = Interruption()

    def interrupted(self, step: int) -> bool:
        """Return whether the run must end after ``step`` because of a signal; the same on all ranks."""
        return self._interruption.anywhere(step, self._comm)

    def write(self, step: int, state: Callable[[], State]) -> Path | None:
        """Write a checkpoint and return its path; collective.

        A failure is reported and returns None, so that training goes on: older checkpoints are intact.
        """
        began = time.perf_counter()
        path = together(self._comm, lambda: self._saved(step, state()))
        if isinstance(path, checkpoint.CheckpointError):
            self._metrics.write("checkpoint", step=step, error=str(path))
            if self._comm.rank == 0:
                print(f"WARNING: {path}", file=sys.stderr)
            return None
        self._metrics.write("checkpoint", step=step, path=str(path), seconds=time.perf_counter() - began)
        return path

    def _saved(self, step: int, state: State) -> Path | checkpoint.CheckpointError:
        model = io.BytesIO()
        if self._comm.rank == 0:
            torch.save(state.shared | {"options": self._options}, model)
        where = self._folder, step, self._identity
        try:
            return checkpoint.save(*where, model.getbuffer(), state.own, self._comm, self._keep)
        except checkpoint.CheckpointError as error:
            return error


def agree_on_folders(args: Namespace, comm: Comm) -> None:
    """Take rank 0's folders on all ranks; collective.

    Needed because default folders are named after the time, and ranks do not start at the same time.
    """
    for name in ("out", "checkpoint_dir"):
        setattr(args, name, Path(tell(comm, str(getattr(args, name)))))


def find(args: Namespace, comm: Comm) -> Found | None:
    """Load the checkpoint to resume from, if the options ask for one; collective.

    Returns None, with a line from rank 0, where there is none yet.

    Raises JobError: on all ranks, when it cannot be used, or a new run would mix its checkpoints with another's.
    """
    if args.resume is None:
        if args.checkpoint_every:
            agreed(comm, lambda: _check_empty(args.checkpoint_dir))
        return None
    place = args.checkpoint_dir if args.resume is NEWEST else args.resume
    if args.resume is NEWEST:
        there = agreed(comm, lambda: comm.rank == 0 and checkpoint.latest(place) is not None)
        if not comm.allreduce(np.array([there], np.int32), "max", control=True)[0]:
            if comm.rank == 0:
                print(f"nothing to resume in {place} yet: starting from scratch")
            return None
    try:
        loaded = checkpoint.load(place, comm)
    except checkpoint.CheckpointError as error:
        raise JobError(str(error)) from None
    agreed(comm, lambda: _check_fork(args, loaded.path.parent))
    try:
        shared = torch.load(io.BytesIO(loaded.model), "cpu", weights_only=True)
    except pickle.UnpicklingError:
        text = "holds more than tensors and plain data, and could run any code; find out from whom you have it"
        raise JobError(f"{loaded.path / 'model.bin'} {text}") from None
    if comm.rank == 0:
        print(f"resuming from {loaded.path}")
    return Found(loaded.path, loaded.step, loaded.identity, shared, loaded.states, loaded.ranks)


def step_of(shared: Mapping[str, Any], epoch_steps: int) -> int:
    done = round(shared["first"] * epoch_steps / shared["epoch_steps"])
    return int(shared["epoch"]) * epoch_steps + min(done, epoch_steps - 1)


def resumed(found: Found, epoch_steps: int) -> Resumed:
    """Return the facts for the records of a run that goes on from ``found`` with epochs of that many steps."""
    shared = found.shared
    steps = epoch_steps, shared["epoch_steps"]
    return Resumed(step_of(shared, epoch_steps), shared["epoch"], str(found.path), found.step, steps)


def _check_fork(args: Namespace, source: Path) -> None:
    """Raise ValueError if a run that goes on from one in ``source`` would write over the results of another."""
    if args.checkpoint_dir.resolve() == source.resolve():
        return
    taken = {
        f"--checkpoint-dir {args.checkpoint_dir} has checkpoints": args.checkpoint_every
        and checkpoint.latest(args.checkpoint_dir),
        f"--out {args.out} has records": (args.out / FILE).exists(),
    }
    for what, there in taken.items():
        if there:
            raise ValueError(
                f"{what} of another run than the one to resume in {source}: --resume that one, or choose another folder"
            )


def _check_empty(folder: Path) -> None:
    if checkpoint.latest(folder):
        raise ValueError(
            f"--checkpoint-dir {folder} has checkpoints of an earlier run: --resume it, or choose another folder"
        )
