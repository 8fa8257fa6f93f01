"""Measurements of training steps, added up over steps and ranks.

Write the records of a run: a file of JSON lines, TensorBoard events, and a plot.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from sparse_mpi import StepReport
from sparse_mpi.cli.records import provenance
from sparse_mpi.comm import Comm
from sparse_train.packages import needed
from sparse_train.tasks.task import Sums

PARTS = ("compute", "exposed", "update")  # parts of a step, in seconds
FILE = "metrics.jsonl"
STYLE = "sparse_mpi_bench.figures.style"  # module that writes figures
WORK = ("selection", "exchange", "merge")  # parts of reductions, exposed or in the background, in seconds


class Stamps(NamedTuple):
    """When the phases of a step began or ended, in `time.perf_counter` seconds."""

    start: float  # start of the step; the batch is yet to be made
    forward: float
    backward: float
    reduced: float
    updated: float


def exchanged(report: StepReport) -> dict[str, Any]:
    """Return a reduction's part of the sums of a `Meter`: its bytes, messages, and seconds of exchange and merge."""
    return {
        "sent": report.traffic.sent + report.traffic.control,
        "messages": report.traffic.messages,
        "exchange": report.exchange_seconds,
        "merge": report.merge_seconds,
    }


@dataclass
class Meter:
    """Sums over steps, of one rank or of all."""

    # Of `Task.forward_and_loss`, first of them items; without a step a scalar, which may be added to any
    sums: Sums = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))
    steps: float = 0
    selected: float = 0  # pairs that a rank selected
    total: float = 0  # entries of the reduced gradient
    sent: float = 0  # bytes, control included
    messages: float = 0  # messages that a rank sent
    compute: float = 0  # seconds: batch, forward, backward
    exposed: float = 0  # seconds from the end of the backward pass until all is reduced
    selection: float = 0  # seconds
    exchange: float = 0  # seconds: communication, and waiting for slower ranks
    merge: float = 0  # seconds
    update: float = 0  # seconds: the optimizer

    @property
    def items(self) -> float:
        return float(self.sums.reshape(-1)[0])

    def add(self, other: Meter) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def summed(self, comm: Comm) -> Meter:
        """Return the sum over all ranks; collective."""
        names = [field.name for field in fields(self) if field.name != "sums"]
        everything = np.array([*(getattr(self, name) for name in names), *self.sums.reshape(-1).tolist()], np.float64)
        total = comm.allreduce(everything, control=True)
        return Meter(torch.from_numpy(total[len(names) :]), **dict(zip(names, total.tolist(), strict=False)))

    def means(self) -> dict[str, float]:
        return {
            "selected": self.selected / self.steps,
            "total": self.total / self.steps,
            "mb_sent": self.sent / self.steps / 1e6,
            "messages": self.messages / self.steps,
            **{f"{part}_seconds": getattr(self, part) / self.steps for part in (*PARTS, *WORK)},
        }


class Resumed(NamedTuple):
    """How far a run had come before it was resumed."""

    step: int
    epochs: int  # number of epochs that are over
    path: str  # path of the checkpoint
    before: int  # number of that step in the run before, whose epochs have other lengths on other numbers of ranks
    epoch_steps: tuple[int, int] = (1, 1)  # steps of an epoch now, and before


class Metrics:
    """The records of a run, each written at once.

    Args:
        folder: made if need be; holds ``metrics.jsonl`` and TensorBoard's events. None records nothing.
        comm: communicator of the ranks; the first records. Another one goes on with the file where that is
            lost.
        resumed: step up to which records of a resumed run stay; None starts new ones.

    Raises OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path | None, comm: Comm, resumed: Resumed | None = None) -> None:
        self._folder, self._comm = folder, comm
        self._file: TextIO | None = None
        self._board: Any = None
        if folder is None or comm.rank:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if resumed:
            retain(folder / FILE, resumed)
        self._open(folder, resumed is not None, min(resumed.step, resumed.before) + 1 if resumed else None)

    def _open(self, folder: Path, goes_on: bool, purged: int | None = None) -> None:
        self._file = (folder / FILE).open("a" if goes_on else "w")
        try:
            self._board = import_module("torch.utils.tensorboard").SummaryWriter(str(folder), purge_step=purged)
        except ImportError:
            print("no TensorBoard events: they need tensorboard; in the checkout: pip install '.[train]'")

    def write(self, event: str, **values: Any) -> None:
        """Append ``{"event": event, **values}``; TensorBoard gets the numbers of events with a ``step``."""
        if self._folder is None or self._comm.rank:
            return
        try:
            self._write(self._folder, event, values)
        except OSError as error:  # a full disk, for example, is no reason to lose the training
            self.close()
            file, self._folder = self._folder / FILE, None
            print(f"WARNING: {file} cannot be written: {error}; training goes on without records", file=sys.stderr)

    def _write(self, folder: Path, event: str, values: dict[str, Any]) -> None:
        """Carry out `write` into the ``folder``. Raises OSError: it cannot be written to."""
        if self._file is None:  # the ranks before this one are lost
            self._open(folder, True)
        print(json.dumps({"event": event, **values}), file=self._file, flush=True)
        if self._board is not None and "step" in values:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{event}/{name}", value, values["step"])

    def close(self) -> None:
        for file in (self._file, self._board):
            if file is not None:
                with suppress(OSError):  # records could not be written, about which `write` has warned
                    file.close()


def retain(file: Path, resumed: Resumed) -> None:
    """Remove the records of steps after the checkpoint, which are trained again, and say so; renumber the others."""
    lines, last = [], resumed.before
    length, length_before = resumed.epoch_steps
    for values in _read(file) if file.exists() else []:
        epoch, step = values.get("epoch", 0), values.get("step", 0)
        done = epoch <= resumed.epochs if values["event"] == "epoch" else step <= resumed.before
        if done and values["event"] != "final":
            counted = {"step": min(-(-step * length // length_before), resumed.step)} if "step" in values else {}
            lines.append(json.dumps(values | counted) + "\n")
        last = max(last, step)
    if last > resumed.before:
        print(f"steps {resumed.before + 1} to {last} are on record beyond the checkpoint, and are trained again")
    new = file.with_suffix(".new")
    new.write_text("".join(lines))
    new.replace(file)


def _read(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def record(args: Namespace, comm: Comm, resumed: Resumed | None = None, **more: Any) -> Metrics:
    """Open the metrics of this run in ``args.out`` and write its configuration; ranks other than 0 record nothing.

    A resumed run appends to the file of before, with a record of where and how it was resumed.

    Raises ImportError: a package that a figure needs is not installed; OSError: the folder cannot be made or written
    to, or not the file of ``args.timeline``; its folder is made.
    """
    for option in ("plot", "timeline"):
        if getattr(args, option):
            for module in ("sparse_mpi_bench.figures", "matplotlib.figure"):
                needed(module, f"--{option}")
    if args.timeline and comm.rank == 0:
        _check_writable(args.timeline, "--timeline")
    begun = resumed is not None and (args.out / FILE).exists()
    metrics = Metrics(args.out, comm, resumed)
    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    more |= {"ranks": comm.size - args.spares, "resumed": resumed and resumed._asdict()}
    metrics.write("resume" if begun else "config", **(options | more), **provenance())
    return metrics


def plot(folder: Path) -> Path:
    """Draw loss, headline and traffic over steps from the records in ``folder``, as ``plot.png`` there.

    Raises ImportError: a package is not installed; OSError: the plot cannot be written.
    """
    training, write = import_module("sparse_mpi_bench.figures.training"), import_module(STYLE).write
    config, *records = _read(folder / FILE)
    write(partial(training.run, [config, *records]), folder / "plot.png")
    return folder / "plot.png"


def _check_writable(file: Path, option: str) -> None:
    """Raise OSError unless ``file`` can be written; leave it as it is."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        file.open("ab").close()
        if new:
            file.unlink()
    except OSError as error:
        raise OSError(f"{option} {file} cannot be written: {error.strerror}; name another file") from None
