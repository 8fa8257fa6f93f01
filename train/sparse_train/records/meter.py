"""Measurements of training steps, added up over steps and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
import torch

from sparse_mpi import StepReport
from sparse_mpi.comm import Comm
from sparse_train.tasks.task import Sums

PARTS = ("compute", "exposed", "update")  # of a step, in seconds
WORK = ("selection", "exchange", "merge")  # of reductions, exposed or in the background, in seconds


class Stamps(NamedTuple):
    """When the phases of a step began or ended, in `time.perf_counter` seconds."""

    start: float  # of the step; the batch is yet to be made
    forward: float
    backward: float
    reduced: float
    updated: float


def exchanged(report: StepReport) -> dict[str, float]:
    """Return what a reduction adds to the sums of a `Meter`: its bytes, messages, and seconds of exchange and merge."""
    return {
        "sent": report.traffic.sent + report.traffic.control,
        "messages": report.traffic.messages,
        "exchange": report.exchange_seconds,
        "merge": report.merge_seconds,
    }


def nothing() -> Sums:
    """Return the sums of no step: a scalar, which may be added to those of any device."""
    return torch.zeros((), dtype=torch.float64)


@dataclass
class Meter:
    """Sums over steps, of one rank or of all."""

    sums: Sums = field(default_factory=nothing)  # of `Task.forward_and_loss`, first of them items
    steps: float = 0
    selected: float = 0  # pairs that a rank selected
    total: float = 0  # entries of the reduced gradient
    sent: float = 0  # bytes, control included
    messages: float = 0  # that a rank sent
    compute: float = 0  # seconds: batch, forward, backward
    exposed: float = 0  # seconds from the end of the backward pass until all is reduced
    selection: float = 0  # seconds
    exchange: float = 0  # seconds: communication, and waiting for slower ranks
    merge: float = 0  # seconds
    update: float = 0  # seconds: the optimizer

    @property
    def items(self) -> float:
        """Return the number of samples, tokens or whatever the task counts."""
        return float(self.sums.reshape(-1)[0])

    def add(self, other: Meter) -> None:
        """Add ``other`` to these sums, in place."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def summed(self, comm: Comm) -> Meter:
        """Return the sum over all ranks; collective."""
        names = [field.name for field in fields(self) if field.name != "sums"]
        everything = np.array([*(getattr(self, name) for name in names), *self.sums.reshape(-1).tolist()], np.float64)
        total = comm.allreduce(everything, control=True)
        return Meter(torch.from_numpy(total[len(names) :]), **dict(zip(names, total.tolist(), strict=False)))

    def means(self) -> dict[str, float]:
        """Return entries, traffic and seconds a step, by name."""
        return {
            "selected": self.selected / self.steps,
            "total": self.total / self.steps,
            "mb_sent": self.sent / self.steps / 1e6,
            "messages": self.messages / self.steps,
            **{f"{part}_seconds": getattr(self, part) / self.steps for part in (*PARTS, *WORK)},
        }
