"""Decentralized data-parallel training: every rank computes on its shard, the gradient alone is reduced."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from job import Refused
from meter import Meter, bar_text, epoch_text
from metrics import Metrics, plot
from planning import Planning, Stamps
from replicas import FlatGradient, average_buffers, broadcast, identical
from schedule import density, learning_rate
from sparse_mpi import SparseAllreduce, SparseVector, dimension_coverage
from sparse_mpi.comm import Comm

Criterion = Callable[[Tensor, Tensor], Tensor]  # mean loss of a batch, from the model's outputs and the labels


class Batches(Protocol):
    """A rank's share of a data set: pairs of inputs and labels."""

    steps: int  # of a training epoch, the same on all ranks

    def train(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of ``epoch``."""

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The test batches."""


class Outcome(NamedTuple):
    """How training ended."""

    accuracy: float  # on the test data
    loss: float
    identical: bool  # whether the replicas are, to the bit
    steps: int
    seconds: float
    step_seconds: float | None  # median of the last reducer's unchecked steps, but its first two; mean over the ranks
    predicted_seconds: float | None  # of a step, by the plan if there is one


class Training:
    """One replica of a model, in training.

    Args:
        model: its weights are those of rank 0 from here on.
        optimizer: over ``model.parameters()``.
        reducer: turns this rank's flat gradient into the sum over the ranks; one ``in_place`` has its residual where
            backward passes add gradients, and no copy is made of either.
        batches: this rank's share of the data.
        args: see `arguments.parse`.
        comm: between the replicas.
        metrics: where records go.
        criterion: what is minimised.
        planning: may replace the reducer after any step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        reducer: SparseAllreduce,
        batches: Batches,
        args: Namespace,
        comm: Comm,
        metrics: Metrics,
        criterion: Criterion = cross_entropy,
        planning: Planning | None = None,
    ) -> None:
        self.model, self.optimizer, self.reducer, self.batches = model, optimizer, reducer, batches
        self.args, self.comm, self.metrics, self.criterion = args, comm, metrics, criterion
        self.planning = planning
        self.limit = min(args.epochs * batches.steps, args.max_steps or math.inf)  # steps
        self.steps = 0
        self.durations: list[float] = []  # seconds of each step with this reducer
        self.coverages: deque[float] = deque(maxlen=2)  # see `_watch_coverage`
        broadcast(model, comm)
        self.gradient = FlatGradient(model, keep=reducer.in_place)
        self.density = self.final_density = reducer.k / reducer.layout.size
        if args.dense_warmup:
            self.dense = SparseAllreduce(
                reducer.layout,
                comm=comm,
                algorithm="dense",
                clip_norm=reducer.clip_norm,
                in_place=reducer.in_place,
            )
            self.dense.memory = reducer.memory  # momentum and residual go on from one to the other

    def run(self) -> Outcome:
        """Train for ``args.epochs`` epochs or ``args.max_steps`` steps, whichever ends first."""
        began, epoch = time.perf_counter(), 0
        hidden = self.comm.rank != 0 or not self.args.progress
        with tqdm(total=self.limit, disable=hidden, mininterval=0.5, unit="step") as bar:
            while self.steps < self.limit:
                bar.set_description(f"epoch {epoch + 1}/{self.args.epochs}")
                meter, seconds = self._epoch(epoch, bar)
                loss, accuracy = self.evaluate()
                self._record(epoch, meter, seconds, loss, accuracy)
                epoch += 1
        same = identical(self.model, self.comm)
        seconds = time.perf_counter() - began
        return Outcome(accuracy, loss, same, self.steps, seconds, self._usual_step(), self._predicted_step())

    def _epoch(self, epoch: int, bar: tqdm) -> tuple[Meter, float]:
        """Train for an epoch, or as far as the limit; what this rank did, and the seconds it took."""
        self.model.train()
        meter = Meter()
        began = start = time.perf_counter()
        for number, (inputs, labels) in enumerate(self.batches.train(epoch)):
            self._schedule(epoch + number / self.batches.steps)
            step = self._step(inputs, labels, start)
            meter.add(step)
            if self._is_logged():
                coverage = float(np.mean(self.coverages))
                now = {"step": self.steps, "epoch": epoch + 1, "lr": self._rate(), "coverage": coverage}
                self.metrics.write("step", **now, **step.means())
            start = time.perf_counter()
            bar.set_postfix_str(bar_text(meter, step, meter.items * self.comm.size / (start - began)), refresh=False)
            bar.update()
            if self.steps == self.limit:
                break
        return meter, time.perf_counter() - began

    def _step(self, inputs: Tensor, labels: Tensor, start: float) -> Meter:
        """Forward, backward, reduce, update; ``start`` is when the batch began to be made."""
        self.gradient.clear()
        outputs = self.model(inputs)
        loss = self.criterion(outputs, labels)
        forward = time.perf_counter()
        loss.backward()
        computed = time.perf_counter()
        reducer = self.dense if self.steps < self.args.dense_warmup else self.reducer
        if self.steps == self.args.dense_warmup:
            self.durations = []
        self.steps += 1
        self.gradient.check()
        total = reducer.step(self.gradient.flat, check=self._is_checked(), density=self.density)
        reduced = time.perf_counter()
        with self.gradient.mean(total, self.comm.size):
            self.optimizer.step()
        updated = time.perf_counter()
        if not self._is_checked():  # which takes two dense allreduces more
            self.durations.append(updated - start)
        self._watch_coverage(total)
        if self.planning is not None:
            planned = self.planning.after(Stamps(start, forward, computed, reduced, updated), self.reducer)
            if planned is not self.reducer:
                self.reducer, self.durations = planned, []
        report = reducer.report
        assert report is not None  # after a step
        return Meter(
            steps=1,
            items=len(labels),
            loss=float(loss.detach()) * len(labels),
            correct=int((outputs.detach().argmax(1) == labels).sum()),
            selected=report.selected,
            total=report.total,
            sent=report.traffic.sent + report.traffic.control,
            compute=computed - start,
            selection=report.select_seconds,
            exchange=report.exchange_seconds,
            merge=report.merge_seconds,
            update=updated - reduced,
        )

    def _watch_coverage(self, total: SparseVector | Tensor) -> None:
        """Note the share of the tensors' rows that have an entry, in steps with a record and in those before them:
        selectors may take turns, and a record tells the mean of two steps."""
        if self.steps % self.args.log_every < 2:
            if not isinstance(total, SparseVector) and hasattr(self.reducer.algorithm, "parts"):
                entries = total.nonzero().flatten()
                total = SparseVector(entries, total[entries], len(total))
            covered = dimension_coverage(total, self.reducer.layout) if isinstance(total, SparseVector) else 1.0
            self.coverages.append(covered)

    def _usual_step(self) -> float | None:
        """See `Outcome.step_seconds`."""
        if not self.durations:
            return None
        usual = np.median(self.durations[2:] or self.durations)
        return float(self.comm.allreduce(np.array([usual]), control=True)[0]) / self.comm.size

    def _predicted_step(self) -> float | None:
        """See `Outcome.predicted_seconds`."""
        plan = self.planning and self.planning.plan
        return plan.predicted if plan else None

    def _is_logged(self) -> bool:
        """Whether the step that has just been counted has a record of its own."""
        return (self.steps - 1) % self.args.log_every == 0

    def _is_checked(self) -> bool:
        return self.args.check_every > 0 and self.steps % self.args.check_every == 0

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test data of all ranks."""
        average_buffers(self.model, self.comm)
        self.model.eval()
        sums = np.zeros(3)
        for inputs, labels in self.batches.test():
            outputs = self.model(inputs)
            correct = int((outputs.argmax(1) == labels).sum())
            sums += [float(self.criterion(outputs, labels)) * len(labels), correct, len(labels)]
        loss, correct, count = self.comm.allreduce(sums, control=True).tolist()
        return loss / count, correct / count

    def _schedule(self, epoch: float) -> None:
        """Set learning rate and density for ``epoch``."""
        args = self.args
        self.density = density(epoch, self.final_density, args.density_warmup)
        peak = args.lr * self.comm.size if args.lr_times_ranks else args.lr
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, peak, self.comm.size, args.warmup_epochs, args.milestones)

    def _rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def _record(self, epoch: int, meter: Meter, seconds: float, test_loss: float, test_accuracy: float) -> None:
        """Write and print what all ranks did in an epoch.

        Raises:
            Refused: the loss is no finite number any more.
        """
        everybody = meter.summed(self.comm)
        values = {
            "epoch": epoch + 1,
            "step": self.steps,
            "lr": self._rate(),
            **everybody.means(),
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "items_per_second": everybody.items / seconds,
            "seconds": seconds,
        }
        if not math.isfinite(everybody.loss + test_loss):
            raise Refused(f"training diverged in epoch {epoch + 1}: the loss is {values['loss']}; try a lower --lr")
        self.metrics.write("epoch", **values)
        if self.comm.rank == 0:
            tqdm.write(epoch_text(values, meter.steps))


def conclude(outcome: Outcome, args: Namespace, comm: Comm, metrics: Metrics) -> None:
    """Write, draw and print how training ended.

    Raises:
        Refused: the replicas are not identical.
    """
    metrics.write("final", **outcome._asdict())
    metrics.close()
    if comm.rank == 0:
        print(f"metrics in {args.out}" + (f", plot in {plot(args.out)}" if args.plot else ""))
        if outcome.predicted_seconds and outcome.step_seconds:
            error = outcome.predicted_seconds / outcome.step_seconds - 1
            print(
                f"a step: predicted {outcome.predicted_seconds:.4f} s, measured {outcome.step_seconds:.4f} s (median), "
                f"off by {error:+.1%}"
            )
        print(
            f"final: test accuracy {outcome.accuracy:.4f}, "
            f"replicas {'identical' if outcome.identical else 'DIFFER'}, "
            f"{outcome.steps} steps, {outcome.seconds:.1f} s"
        )
    if not outcome.identical:
        raise Refused("the replicas differ after training; --check-every 1 shows in which step that starts")
