"""Decentralized data-parallel training: every rank computes on its shard, the gradient alone is reduced."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from evaluation import evaluate
from journal import Journal, Outcome
from meter import Meter
from metrics import Metrics
from planning import Planning, Stamps
from replicas import FlatGradient, broadcast, identical
from schedule import density, learning_rate
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import Comm
from task import Task


class Training:
    """One replica of a model, in training.

    Args:
        task: what is trained on what; the weights are those of rank 0 from here on.
        optimizer: over the model's parameters.
        reducer: turns this rank's flat gradient into the sum over the ranks; one ``in_place`` has its residual where
            backward passes add gradients, and no copy is made of either.
        args: see `arguments.parse`.
        comm: between the replicas.
        metrics: where records go.
        planning: may replace the reducer after any step.
    """

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        reducer: SparseAllreduce,
        args: Namespace,
        comm: Comm,
        metrics: Metrics,
        planning: Planning | None = None,
    ) -> None:
        self.task, self.optimizer, self.reducer, self.args, self.comm = task, optimizer, reducer, args, comm
        self.planning = planning
        self.limit = min(args.epochs * task.steps, args.max_steps or math.inf)  # steps
        self.steps = 0
        self.durations: list[float] = []  # seconds of each step with this reducer
        self.journal = Journal(task, args, comm, metrics, int(self.limit))
        broadcast(task.model, comm)
        self.gradient = FlatGradient(task.model, keep=reducer.in_place)
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
        began = time.perf_counter()
        with self.journal.bar:
            while self.steps < self.limit:
                epoch, first = divmod(self.steps, self.task.steps)
                meter, seconds = self._epoch(epoch, first)
                scores = evaluate(self.task, self.comm)
                self.journal.epoch(self._now(epoch), meter, seconds, scores)
        headline, same = self.task.headline, identical(self.task.model, self.comm)
        seconds = time.perf_counter() - began
        plan = self.planning and self.planning.plan
        predicted = plan.predicted if plan else None
        return Outcome(
            headline, scores[headline], scores["loss"], same, self.steps, seconds, self._usual_step(), predicted
        )

    def _epoch(self, epoch: int, first: int) -> tuple[Meter, float]:
        """Train for an epoch from step ``first`` on, or as far as the limit; what this rank did, and the seconds."""
        self.task.model.train()
        meter = Meter()
        began = start = time.perf_counter()
        for number, batch in enumerate(self.task.train(epoch, first), first):
            self._prepare(epoch + number / self.task.steps)
            step = self._step(batch, start)
            meter.add(step)
            start = time.perf_counter()
            self.journal.step(self._now(epoch), step, meter, start - began)
            if self.steps == self.limit:
                break
        return meter, time.perf_counter() - began

    def _prepare(self, epoch: float) -> None:
        """Set learning rate and density for ``epoch``, and torch's generator for the step: a function of its number
        and the rank alone, so that dropout is the same in a run that is resumed here."""
        self.density = density(epoch, self.final_density, self.args.density_warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, self.args, self.comm.size)
        torch.manual_seed(step_seed(self.args.seed, self.steps, self.comm.rank))

    def _step(self, batch: Any, start: float) -> Meter:
        """Forward, backward, reduce, update; ``start`` is when the batch began to be made."""
        self.gradient.clear()
        loss, sums = self.task.judge(batch)
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
        self.journal.cover(self.steps, total, self.reducer)
        if self.planning is not None:
            planned = self.planning.after(Stamps(start, forward, computed, reduced, updated), self.reducer)
            if planned is not self.reducer:
                self.reducer, self.durations = planned, []
        report = reducer.report
        assert report is not None  # after a step
        return Meter(
            sums,
            steps=1,
            selected=report.selected,
            total=report.total,
            sent=report.traffic.sent + report.traffic.control,
            compute=computed - start,
            selection=report.select_seconds,
            exchange=report.exchange_seconds,
            merge=report.merge_seconds,
            update=updated - reduced,
        )

    def _is_checked(self) -> bool:
        return self.args.check_every > 0 and self.steps % self.args.check_every == 0

    def _usual_step(self) -> float | None:
        """See `Outcome.step_seconds`."""
        if not self.durations:
            return None
        usual = np.median(self.durations[2:] or self.durations)
        return float(self.comm.allreduce(np.array([usual]), control=True)[0]) / self.comm.size

    def _now(self, epoch: int) -> dict[str, Any]:
        """Where training stands, for records."""
        return {"epoch": epoch + 1, "step": self.steps, "lr": self.optimizer.param_groups[0]["lr"]}


def step_seed(seed: int, step: int, rank: int) -> int:
    """What torch's generator starts from in step number ``step`` on ``rank``."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
