"""The steps of a run: gradients are reduced in each, or ranks exchange their models' movement every few steps."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from sparse_mpi import SparseAllreduce, StepReport
from sparse_mpi.training.diloco import DiLoCo
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.records.metrics import Meter, Stamps, exchanged
from sparse_train.tasks.task import Sums, Task


class Step(NamedTuple):
    stamps: Stamps
    meter: Meter


def metered(stamps: Stamps, sums: Sums, report: StepReport | None) -> Meter:
    start, _, backward, reduced, updated = stamps
    phases = {"compute": backward - start, "exposed": reduced - backward, "update": updated - reduced}
    return Meter(sums, steps=1, **phases, **costs(report))


def costs(report: StepReport | None) -> dict[str, Any]:
    if report is None:
        return {}
    counts = {"selected": report.selected, "total": report.total, "selection": report.select_seconds}
    return counts | exchanged(report)


class GradientSteps:
    """Steps of a `DistributedOptimizer`, each with the sum of all ranks' gradients.

    Of ``optimizers`` the reduction has the states; the options of these stay when one is loaded.
    """

    def __init__(self, task: Task, optimizer: Any, args: Namespace) -> None:
        self.optimizer, self.optimizers, self._task, self._flush = optimizer, (), task, args.flush
        self.reduction: GradientReduction = optimizer.reduction

    @property
    def reducers(self) -> list[SparseAllreduce]:
        return [bucket.reducer for bucket in self.reduction.buckets]

    def take(self, batch: Any, start: float, clock: Callable[[], float]) -> Step:
        """Take a step; ``start`` is when the batch began to be made."""
        self.optimizer.zero_grad()
        loss, sums = self._task.forward_and_loss(batch)
        forward = clock()
        loss.backward()
        computed = clock()
        self.optimizer.synchronize()
        reduced = clock()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        stamps = Stamps(start, forward, computed, reduced, clock())
        return Step(stamps, metered(stamps, sums, self.reduction.report))

    def finish(self) -> Meter | None:
        """Apply all residuals after the last step; return the cost, None if it is not wanted."""
        if not self._flush:
            return None
        self.optimizer.flush()
        report = self.reduction.report
        return Meter() if report is None else Meter(**exchanged(report))

    def global_parameters(self) -> AbstractContextManager[None]:
        """Change nothing: all ranks have the same parameters."""
        return nullcontext()

    def model_state(self) -> dict[str, Tensor]:
        return self._task.model.state_dict()


class LocalSteps:
    """Steps of a plain optimizer on each rank, and the `DiLoCo` that follows them.

    The model is evaluated and saved with the global parameters, which are the same on all ranks.
    """

    def __init__(self, task: Task, optimizer: Any, args: Namespace, reduction: DiLoCo) -> None:
        self.optimizer, self.optimizers = optimizer, (optimizer, reduction.outer)
        self.reduction: Any = reduction  # a `GradientReduction` where spares may join
        self._task, self._clip_norm, self._flush = task, args.clip_norm, args.flush

    @property
    def reducers(self) -> list[SparseAllreduce]:
        return self.reduction.reducers

    def take(self, batch: Any, start: float, clock: Callable[[], float]) -> Step:
        self.optimizer.zero_grad()
        loss, sums = self._task.forward_and_loss(batch)
        forward = clock()
        loss.backward()
        if self._clip_norm is not None:
            clip_grad_norm_(self._task.model.parameters(), self._clip_norm)
        computed = clock()
        self.optimizer.step()
        stamps = Stamps(start, forward, computed, computed + self.reduction.seconds, clock())
        return Step(stamps, metered(stamps, sums, self.reduction.report))

    def finish(self) -> Meter:
        """Bring all ranks together after the last step, with all residuals if that is wanted."""
        (self.reduction.flush if self._flush else self.reduction.synchronize)()
        return Meter(**costs(self.reduction.report))

    def global_parameters(self) -> AbstractContextManager[None]:
        """Have the model's parameters be the global ones."""
        return self.reduction.globally()

    def model_state(self) -> dict[str, Tensor]:
        """Return a copy of the model's state with the global parameters."""
        with self.reduction.globally():
            return {name: tensor.clone() for name, tensor in self._task.model.state_dict().items()}


Steps = GradientSteps | LocalSteps
