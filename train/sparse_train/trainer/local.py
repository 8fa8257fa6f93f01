"""Training by local steps: each rank takes some of its own, then all exchange what their models have moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn.utils import clip_grad_norm_

from sparse_mpi import SparseAllreduce
from sparse_mpi.training.diloco import DiLoCo
from sparse_train.records.meter import Meter, exchanged, nothing
from sparse_train.trainer.evaluation import evaluate
from sparse_train.trainer.loop import Training


class LocalTraining(Training):
    """One replica of a model, which has parameters of its own between synchronisations.

    Its ``optimizer`` is a plain one, and ``reduction`` the `DiLoCo` that follows its steps. The model is evaluated and
    saved with the global parameters, which are the same on all ranks.
    """

    reduction: DiLoCo  # type: ignore[assignment]

    @property
    def reducers(self) -> list[SparseAllreduce]:
        """Return the fragments' reducers."""
        return self.reduction.reducers

    @property
    def decided(self) -> None:
        """Return None: no budget sets the amount."""
        return None

    def _step(self, batch: Any, start: float) -> Meter:
        """Take a step, after which a fragment may be synchronised, and return its measurements."""
        self.optimizer.zero_grad()
        loss, sums = self.task.forward_and_loss(batch)
        loss.backward()
        if self.args.clip_norm is not None:
            clip_grad_norm_(self.task.model.parameters(), self.args.clip_norm)
        computed = self.clock()
        self.steps += 1
        self.optimizer.step()
        updated, spent = self.clock(), self.reduction.seconds
        if not self._is_measured(self.steps):
            self.durations.append(updated - start)
        step = Meter(sums, steps=1, compute=computed - start, exposed=spent, update=updated - computed - spent)
        step.add(self._exchanged())
        return step

    def _exchanged(self) -> Meter:
        """Return what the synchronisations of the last step, or the last call, have cost."""
        report = self.reduction.report
        if report is None:
            return Meter()
        counts = {"selected": report.selected, "total": report.total, "selection": report.select_seconds}
        return Meter(nothing(), **counts, **exchanged(report))

    def _flush(self, epoch: int) -> None:
        """Bring all ranks together after the last step, with all that they owe if that is wanted; at most once."""
        if self.steps < self.limit or self.flushed == self.steps:
            return
        start = self.clock()
        self.reduction.check = self._is_checked(self.steps)
        if self.args.flush:
            self.reduction.flush()
        else:
            self.reduction.synchronize()
        spent, meter = self.clock() - start, self._exchanged()
        meter.exposed = spent
        self.meter.add(meter)
        self.seconds += spent
        self.flushed = self.steps
        if self.args.flush:
            self.journal.flush(self._now(epoch), meter.sent, spent)

    def _evaluate(self) -> dict[str, float]:
        """Return the scores of the model with the global parameters; collective."""
        with self.reduction.globally():
            return evaluate(self.task, self.comm)

    def _shared(self) -> dict[str, Any]:
        """Return what is the same on all ranks: of the model, the global parameters."""
        with self.reduction.globally():
            model = {name: tensor.clone() for name, tensor in self.task.model.state_dict().items()}
        return super()._shared() | {"model": model}

    def resume(self, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]], ranks: int) -> None:
        """Go on where a run was when it had this `state`, see `Training.resume`."""
        with self._same_options(self.optimizer), self._same_options(self.reduction.outer):
            super().resume(shared, own, ranks)
