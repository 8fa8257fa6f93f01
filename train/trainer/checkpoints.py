"""When a training run writes a checkpoint, what it is of, and where a run is resumed from."""

from __future__ import annotations

import io
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from options.checkpoints import NEWEST
from ranks.interruption import Interruption
from ranks.job import JobError, agreed
from records.metrics import FILE, Metrics, Resumed
from sparse_mpi import checkpoint
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from trainer.identity import options_of


class State(NamedTuple):
    """All that a run needs to go on, to the same bits on as many ranks."""

    shared: dict[str, Any]  # the same on all ranks: what torch.save takes and torch.load gives with weights_only
    own: dict[str, Any]  # of this rank: see `sparse_mpi.checkpoint.trees`


class Found(NamedTuple):
    """A checkpoint to resume from."""

    path: Path
    step: int
    identity: dict[str, Any]
    shared: dict[str, Any]  # see `State`
    own: list[dict[str, Any]]  # of those old ranks that this one goes on for
    ranks: int  # that wrote it


class Checkpoints:
    """Writes the checkpoints of a run, every ``args.checkpoint_every`` steps.

    Args:
        args: see `options.checkpoints`.
        identity: see `identity.identity_of`.
        comm: between the ranks.
        metrics: where a record of each goes.
    """

    def __init__(self, args: Namespace, identity: dict[str, Any], comm: Comm, metrics: Metrics) -> None:
        self._every, self._folder, self._keep = args.checkpoint_every, args.checkpoint_dir, args.keep
        self._identity, self._comm, self._metrics = identity, comm, metrics
        self._options = options_of(args)
        self._interruption = Interruption()

    def interrupted(self, step: int) -> bool:
        """Whether the run is to end after ``step``; the same on all ranks."""
        return self._interruption.anywhere(step, self._comm)

    def due(self, step: int) -> bool:
        """Whether it is ``step``'s turn."""
        return step % self._every == 0

    def write(self, step: int, state: State) -> Path | None:
        """Write a checkpoint; where that fails, say so, return None and let training go on: older ones are intact."""
        began, lead = time.perf_counter(), self._comm.rank == 0
        model = io.BytesIO()
        if lead:
            torch.save(state.shared | {"options": self._options}, model)
        try:
            path = checkpoint.save(
                self._folder, step, self._identity, model.getbuffer(), state.own, self._comm, self._keep
            )
        except checkpoint.CheckpointError as error:
            self._metrics.write("checkpoint", step=step, error=str(error))
            if lead:
                tqdm.write(f"WARNING: {error}", file=sys.stderr)
            return None
        self._metrics.write("checkpoint", step=step, path=str(path), seconds=time.perf_counter() - began)
        return path


def agree_on_folders(args: Namespace, comm: Comm) -> None:
    """Take rank 0's folders on all ranks: the default is named after the time, at which they did not start alike."""
    for name in ("out", "checkpoint_dir"):
        setattr(args, name, Path(tell(comm, str(getattr(args, name)))))


def find(args: Namespace, comm: Comm) -> Found | None:
    """The checkpoint to resume from, if the options ask for one; None, said aloud, where there is none yet.

    Raises:
        JobError: it cannot be used, or a new run would mix its checkpoints with those of another; on all ranks.
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
    shared = torch.load(io.BytesIO(loaded.model), weights_only=True)
    if comm.rank == 0:
        print(f"resuming from {loaded.path}")
    return Found(loaded.path, loaded.step, loaded.identity, shared, loaded.states, loaded.ranks)


def step_of(shared: Mapping[str, Any], epoch_steps: int) -> int:
    """How many steps are done, see `State`, where an epoch has so many of them: as great a share of it is over."""
    done = round(shared["first"] * epoch_steps / shared["epoch_steps"])
    return int(shared["epoch"]) * epoch_steps + min(done, epoch_steps - 1)


def resumed(found: Found, epoch_steps: int) -> Resumed:
    """What records are to know of a run that goes on from ``found`` with epochs of so many steps."""
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
