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
from replicas import identical
from schedule import density, learning_rate
from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import Comm
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi.reduction import GradientReduction
from task import Task
from timeline import Recorder


class Training:
    """One replica of a model, in training.

    Args:
        task: what is trained on what; the weights are those of rank 0 from here on.
        optimizer: a `DistributedOptimizer` over the model's parameters.
        args: see `arguments.parse`.
        comm: between the replicas.
        metrics: where records go.
        planning: may replace reducers after any step.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Any,
        args: Namespace,
        comm: Comm,
        metrics: Metrics,
        planning: Planning | None = None,
    ) -> None:
        self.task, self.optimizer, self.args, self.comm, self.planning = task, optimizer, args, comm, planning
        self.reduction: GradientReduction = optimizer.reduction
        self.limit = min(args.epochs * task.steps, args.max_steps or math.inf)  # steps
        self.steps = 0
        self.durations: list[float] = []  # seconds of each step with these reducers
        self.recorder = Recorder(self.reduction, args.timeline) if args.timeline and comm.rank == 0 else None
        self.journal = Journal(task, args, comm, metrics, int(self.limit))
        broadcast_parameters(task.model.state_dict(), comm=comm)
        self.sparse = self.reducers
        self.final_density = sum(r.k for r in self.sparse) / sum(r.layout.size for r in self.sparse)
        if args.dense_warmup:
            for bucket in self.reduction.buckets:
                bucket.reducer = dense_like(bucket.reducer)

    @property
    def reducers(self) -> list[SparseAllreduce]:
        """Of the buckets, in the next step."""
        return [bucket.reducer for bucket in self.reduction.buckets]

    def run(self) -> Outcome:
        """Train for ``args.epochs`` epochs or ``args.max_steps`` steps, whichever ends first."""
        began = time.perf_counter()
        with self.journal.bar:
            while self.steps < self.limit:
                epoch, first = divmod(self.steps, self.task.steps)
                meter, seconds = self._epoch(epoch, first)
                scores = evaluate(self.task, self.comm)
                self.journal.epoch(self._now(epoch), meter, seconds, scores)
        if self.recorder is not None:
            print(self.recorder.draw())
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
        self.reduction.density = density(epoch, self.final_density, self.args.density_warmup)
        self.reduction.check = self._is_checked(self.steps + 1)
        if self.args.dense_warmup and self.steps == self.args.dense_warmup:
            self.durations = []
            for bucket, reducer in zip(self.reduction.buckets, self.sparse, strict=True):
                bucket.reducer = reducer
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, self.args, self.comm.size)
        torch.manual_seed(step_seed(self.args.seed, self.steps, self.comm.rank))

    def _step(self, batch: Any, start: float) -> Meter:
        """Forward, backward, reduce, update; ``start`` is when the batch began to be made."""
        self.optimizer.zero_grad()
        loss, sums = self.task.judge(batch)
        forward = time.perf_counter()
        loss.backward()
        computed = time.perf_counter()
        self.steps += 1
        totals = self.optimizer.synchronize()
        reduced = time.perf_counter()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        updated = time.perf_counter()
        if not self._is_checked(self.steps):  # which takes two dense allreduces more
            self.durations.append(updated - start)
        self.journal.cover(self.steps, totals, self.reducers)
        report = self.reduction.report
        stamps = Stamps(start, forward, computed, reduced, updated)
        if self.recorder is not None:
            self.recorder.add(self.steps, stamps)
        if self.planning is not None and self.planning.after(stamps, self.reduction):
            self.durations = []
        return Meter(
            sums,
            steps=1,
            selected=report.selected,
            total=report.total,
            sent=report.traffic.sent + report.traffic.control,
            compute=computed - start,
            exposed=reduced - computed,
            selection=report.select_seconds,
            exchange=report.exchange_seconds,
            merge=report.merge_seconds,
            update=updated - reduced,
        )

    def _is_checked(self, step: int) -> bool:
        return self.args.check_every > 0 and step % self.args.check_every == 0

    def _usual_step(self) -> float | None:
        """See `Outcome.step_seconds`."""
        if not self.durations:
            return None
        usual = np.median(self.durations[2:] or self.durations)
        return float(self.comm.allreduce(np.array([usual]), control=True)[0]) / self.comm.size

    def _now(self, epoch: int) -> dict[str, Any]:
        """Where training stands, for records."""
        return {"epoch": epoch + 1, "step": self.steps, "lr": self.optimizer.param_groups[0]["lr"]}


def dense_like(reducer: SparseAllreduce) -> SparseAllreduce:
    """One that reduces everything, and shares the memory of ``reducer``: momentum and residual go on."""
    dense = SparseAllreduce(
        reducer.layout,
        comm=reducer.comm,
        algorithm="dense",
        clip_norm=reducer.clip_norm,
        in_place=reducer.in_place,
    )
    dense.memory = reducer.memory
    return dense


def step_seed(seed: int, step: int, rank: int) -> int:
    """What torch's generator starts from in step number ``step`` on ``rank``."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
