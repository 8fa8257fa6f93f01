"""Decentralized data-parallel training: every rank computes on its shard, the gradient alone is reduced."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch

from sparse_mpi import SparseAllreduce
from sparse_mpi.budget import Decision
from sparse_mpi.comm import Comm
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.options.optimization import density, learning_rate
from sparse_train.ranks.job import Preempted
from sparse_train.records.journal import Journal, Outcome
from sparse_train.records.meter import Meter, Stamps, exchanged, nothing
from sparse_train.records.metrics import Metrics
from sparse_train.records.timeline import Recorder
from sparse_train.tasks.task import Task
from sparse_train.trainer.checkpoints import Checkpoints
from sparse_train.trainer.evaluation import digest, evaluate, identical
from sparse_train.trainer.planning import Planning
from sparse_train.trainer.resumable import Resumable
from sparse_train.trainer.survivors import Survivors


class Training(Resumable):
    """One replica of a model, in training.

    Args:
        task: what is trained on what; the weights are those of rank 0 from here on.
        optimizer: a `DistributedOptimizer` over the model's parameters, or with ``reduction`` a plain one.
        planning: may replace reducers after any step.
        checkpoints: writes them; None writes none.
        reduction: what reduces in place of the optimizer's own.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Any,
        args: Namespace,
        comm: Comm,
        metrics: Metrics,
        planning: Planning | None = None,
        checkpoints: Checkpoints | None = None,
        reduction: Any = None,
    ) -> None:
        self.task, self.optimizer, self.args, self.comm = task, optimizer, args, comm
        self.planning, self.checkpoints = planning, checkpoints
        self.reduction: GradientReduction = optimizer.reduction if reduction is None else reduction
        self.limit = min(args.epochs * task.steps, args.max_steps or math.inf)  # steps
        self.steps = 0
        self.meter, self.seconds = Meter(), 0.0  # of the running epoch: what this rank did, and how long
        self.recorded = True  # whether there is nothing in them yet
        self.flushed = 0  # after how many steps all that was owed was sent, see `_flush`
        self.scores: dict[str, float] = {}  # of the last epoch
        self.durations: list[float] = []  # seconds of each step with these reducers
        self.recorder = Recorder(self.reduction, args.timeline) if args.timeline and comm.rank == 0 else None
        self.clock = self.recorder.clock if self.recorder is not None else time.perf_counter  # of a step's phases
        self.journal = Journal(task, args, comm, metrics, int(self.limit))
        self.ranks = task.share.ranks  # at the start: a step has the samples of so many
        self.survivors = Survivors(comm, task.share, args.min_ranks, metrics, self.given)
        broadcast_parameters(task.model.state_dict(), comm=comm)
        self.final_density = sum(r.k for r in self.reducers) / sum(r.layout.size for r in self.reducers)
        self.algorithms = [reducer.algorithm for reducer in self.reducers]  # those after a dense warm-up

    @property
    def reducers(self) -> list[SparseAllreduce]:
        """Return the buckets' reducers in the next step."""
        return [bucket.reducer for bucket in self.reduction.buckets]

    @property
    def decided(self) -> Decision | None:
        """Return what a budget has decided for the last step, if there is one."""
        return self.reduction.decided

    def start(self, resume: Callable[[], None]) -> bool:
        """Return False on a spare, which has waited here, if it was never needed. Collective.

        Others go on where the run is when they join it, or where ``resume()`` brings it.
        """
        state = self.survivors.stand_by()
        if state is not None:
            self.join(state)
        elif not self.survivors.waits:
            resume()
        return not self.survivors.waits

    def run(self) -> Outcome:
        """Train for ``args.epochs`` epochs or ``args.max_steps`` steps, whichever ends first."""
        began = time.perf_counter()
        with closing(self.journal):
            if self.steps < self.limit:
                self.journal.first_step()
            if self.args.watch_every:
                self.reduction.watch(self.args.watch_every, self.steps)
            while self.steps < self.limit or not self.recorded:
                epoch, first = divmod(self.steps, self.task.steps)
                self._epoch(epoch, first)
                self._flush(epoch)  # by now at the latest: a resumed run may have nothing left to train
                self.scores = self._evaluate()
                self.journal.epoch(self._now(epoch), self.meter, self.seconds, self.scores)
                self.meter, self.seconds, self.recorded = Meter(), 0.0, True
                if self.steps % self.task.steps == 0:
                    self._save()
        if self.recorder is not None:
            print(self.recorder.draw())
        headline, same = self.task.headline, identical(self.task.model, self.comm)
        seconds = time.perf_counter() - began
        plan = self.planning and self.planning.plan
        predicted = plan.predicted if plan else None
        score, loss, usual = self.scores[headline], self.scores["loss"], self._usual_step()
        return Outcome(headline, score, loss, same, self.steps, seconds, usual, predicted, digest(self.task.model))

    def _epoch(self, epoch: int, first: int) -> None:
        """Train from step ``first`` of an epoch to its end, or as far as the limit."""
        self.task.model.train()
        start = self.clock()
        began = start - self.seconds
        for number, batch in self._batches(epoch, first):
            self._prepare(epoch + number / self.task.steps)
            step = self._step(batch, start)
            self.meter.add(step)
            self.recorded = False
            start = self.clock()
            self.seconds = start - began
            if self._is_watched(self.steps):
                self.journal.watch(self._now(epoch), self.reduction.quality)
            self.journal.step(self._now(epoch), step, self.meter, self.seconds)
            self.journal.spend(self._now(epoch), self.decided)
            self._flush(epoch)
            if self.steps % self.task.steps:  # at the end of an epoch the test comes first
                self._save()

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[int, Any]]:
        """Yield the steps of an epoch from ``first`` on, as far as the limit, and this rank's batch in each."""
        last = int(min(self.task.steps, first + self.limit - self.steps))
        self.survivors.regroup(epoch, first)
        while first < last:
            for number, batch in zip(range(first, last), self.task.train(epoch, first), strict=False):
                yield number, batch
                first = number + 1
                # Begin anew where samples are dealt to fewer ranks from here on.
                if first < last and self.survivors.regroup(epoch, first):
                    break

    def _save(self) -> None:
        """Write a checkpoint if it is time for one.

        Raises JobError: loss or weights are not finite, see `Journal.check`; Preempted: the job is to end.
        """
        few, ended = self.survivors.too_few(), self.steps == self.limit
        if self.checkpoints is None:
            if few and not ended:
                raise Preempted(f"{few}; there is no checkpoint of step {self.steps} without --checkpoint-every")
            return
        interrupted = bool(few) or self.checkpoints.interrupted(self.steps)
        if ended or interrupted or self.checkpoints.due(self.steps):
            self.journal.check(self.steps, self.meter)
            written = self.checkpoints.write(self.steps, self.state)
            if interrupted and not ended:
                lost = "but there is no checkpoint of it, see above"
                then = f"--resume {written} goes on from there" if written else lost
                raise Preempted(f"stopped after step {self.steps} {f'because {few}' if few else 'as told'}; {then}")

    def _prepare(self, epoch: float) -> None:
        """Set learning rate, density and random seed for the next step, ``epoch`` epochs into training.

        The seed depends on the step and the rank alone, so that dropout is the same in a run that is resumed here.
        """
        self.reduction.density = density(epoch, self.final_density, self.args.density_warmup)
        self.reduction.check = self._is_checked(self.steps + 1)
        self._warm_up()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, self.args, self.ranks)
        torch.manual_seed(step_seed(self.args.seed, self.steps, self.task.share.rank))

    def _warm_up(self) -> None:
        """Reduce densely in the steps of the warm-up, and as asked to after it."""
        if self.args.dense_warmup and self.steps in (0, self.args.dense_warmup):
            self.durations = []
        if self.steps < self.args.dense_warmup:
            self.reduction.use("dense")
        else:
            self._finish_warmup()

    def _step(self, batch: Any, start: float) -> Meter:
        """Take a step, and return its measurements; ``start`` is when the batch began to be made."""
        self.optimizer.zero_grad()
        with self.optimizer.ahead():
            loss, sums = self.task.forward_and_loss(batch)
            forward = self.clock()
            loss.backward()
            computed = self.clock()
        self.steps += 1
        totals = self.optimizer.synchronize()
        reduced = self.clock()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        updated = self.clock()
        if not self._is_measured(self.steps):  # which takes two dense allreduces more
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
            compute=computed - start,
            exposed=reduced - computed,
            selection=report.select_seconds,
            update=updated - reduced,
            **exchanged(report),
        )

    def _flush(self, epoch: int) -> None:
        """Apply all that the ranks owe if that is wanted and the last step is over; at most once."""
        if not self.args.flush or self.steps < self.limit or self.flushed == self.steps:
            return
        start = time.perf_counter()
        self.reduction.check = self._is_checked(self.steps)
        self.optimizer.flush()
        report, spent = self.reduction.report, time.perf_counter() - start
        meter = Meter(nothing(), exposed=spent, **exchanged(report))
        self.meter.add(meter)
        self.seconds += spent
        self.flushed = self.steps
        self.journal.flush(self._now(epoch), meter.sent, spent)

    def _evaluate(self) -> dict[str, float]:
        """Return the scores of the model; collective."""
        return evaluate(self.task, self.comm)

    def _is_checked(self, step: int) -> bool:
        return self.args.check_every > 0 and step % self.args.check_every == 0

    def _is_watched(self, step: int) -> bool:
        return self.args.watch_every > 0 and step % self.args.watch_every == 0

    def _is_measured(self, step: int) -> bool:
        return self._is_checked(step) or self._is_watched(step)

    def _usual_step(self) -> float | None:
        """Return the median step time, see `Outcome.step_seconds`; collective."""
        if not self.durations:
            return None
        usual = np.median(self.durations[2:] or self.durations)
        total, ranks = self.comm.allreduce(np.array([usual, 1]), control=True)
        return float(total / ranks)

    def _now(self, epoch: int) -> dict[str, Any]:
        """Return epoch, step and learning rate, for records."""
        return {"epoch": epoch + 1, "step": self.steps, "lr": self.optimizer.param_groups[0]["lr"]}


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of torch's generator in step number ``step`` on ``rank``."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
