"""What a training step did, added up over steps and ranks, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from sparse_mpi.comm import Comm

PARTS = ("compute", "selection", "exchange", "merge", "update")  # of a step, in seconds


@dataclass
class Meter:
    """Sums over steps, of one rank or of all."""

    steps: float = 0
    items: float = 0
    loss: float = 0  # times items
    correct: float = 0
    selected: float = 0  # pairs that a rank selected
    total: float = 0  # entries of the reduced gradient
    sent: float = 0  # bytes, control included
    compute: float = 0  # seconds: batch, forward, backward
    selection: float = 0  # seconds
    exchange: float = 0  # seconds: communication, and waiting for slower ranks
    merge: float = 0  # seconds
    update: float = 0  # seconds: the optimizer

    def add(self, other: Meter) -> None:
        """Add ``other``."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def summed(self, comm: Comm) -> Meter:
        """The sum over all ranks."""
        return Meter(*comm.allreduce(np.array(astuple(self), np.float64), control=True).tolist())

    def means(self) -> dict[str, float]:
        """Loss and accuracy an item; entries, traffic and seconds a step."""
        return {
            "loss": self.loss / self.items,
            "accuracy": self.correct / self.items,
            "selected": self.selected / self.steps,
            "total": self.total / self.steps,
            "mb_sent": self.sent / self.steps / 1e6,
            **{f"{part}_seconds": getattr(self, part) / self.steps for part in PARTS},
        }


def bar_text(epoch: Meter, step: Meter, items_per_second: float) -> str:
    """What stands behind rank 0's bar: means of the epoch so far, entries and traffic of the last step."""
    return (
        f"loss {epoch.loss / epoch.items:.3f}, accuracy {epoch.correct / epoch.items:.3f}, "
        f"{items_per_second:.0f} images/s, selected {step.selected:.0f}, global {step.total:.0f}, "
        f"{step.sent / 1e6:.2f} MB/step"
    )


def epoch_text(values: Mapping[str, float], steps: float) -> str:
    """The lines printed after an epoch of ``steps`` steps; traffic and seconds are means of the ranks."""
    parts = ", ".join(f"{part} {values[f'{part}_seconds'] * steps:.1f}" for part in PARTS)
    return (
        f"epoch {values['epoch']}: "
        f"test accuracy {values['test_accuracy']:.4f}, test loss {values['test_loss']:.4f}, "
        f"accuracy {values['accuracy']:.4f}, loss {values['loss']:.4f}, lr {values['lr']:.4g}\n"
        f"    {values['items_per_second']:.0f} images/s, selected {values['selected']:.0f}, "
        f"global {values['total']:.0f}, {values['mb_sent']:.2f} MB/step; seconds: {parts}"
    )
