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

from sparse_mpi.algorithms.dense import Dense
from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi.training.diloco import DiLoCo
from sparse_train.options.optimization import density, learning_rate
from sparse_train.ranks.job import Preempted
from sparse_train.records.journal import Journal, Outcome, predicted
from sparse_train.records.metrics import Meter, Metrics
from sparse_train.records.timeline import Recorder
from sparse_train.tasks.task import Task
from sparse_train.trainer.checkpoints import Checkpoints
from sparse_train.trainer.planning import Planning
from sparse_train.trainer.resumption import Progress, Resumption
from sparse_train.trainer.steps import GradientSteps, LocalSteps, Steps
from sparse_train.trainer.survivors import Survivors, digest, evaluate, identical


class Training:
    """One replica of a model, in training.

    Args:
        task: the model and its data; the weights are rank 0's from here on.
        optimizer: a `DistributedOptimizer` over the model's parameters, or with ``local`` a plain one.
        args: see `arguments.parse`.
        comm: communicator of the replicas.
        metrics: takes the records.
        planning: its plan goes into checkpoints.
        checkpoints: writes them; None writes none.
        local: exchanges parameters instead of gradients.
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
        local: DiLoCo | None = None,
    ) -> None:
        self.task, self.args, self.comm, self.checkpoints = task, args, comm, checkpoints
        made_of = task, optimizer, args
        self.taking: Steps = GradientSteps(*made_of) if local is None else LocalSteps(*made_of, local)
        self.reduction: Any = self.taking.reduction
        self.limit = min(args.epochs * task.steps, args.max_steps or math.inf)  # steps
        self.progress = Progress()
        self.durations: list[float] = []  # seconds of each step with these reducers
        self.recorder = Recorder(self.reduction, args.timeline) if args.timeline else None
        self.clock = self.recorder.clock if self.recorder is not None else time.perf_counter  # clock of a step's phases
        self.journal = Journal(task, args, comm, metrics, int(self.limit))
        self.ranks = task.share.ranks  # ranks at the start: a step has the samples of this number of ranks
        state = task, self.taking, comm, planning, self.journal, self.progress
        self.resumption = Resumption(*state)
        self.survivors = Survivors(
            comm, task.share, args.min_ranks, metrics, lambda: self.resumption.given(self.survivors)
        )
        broadcast_parameters(task.model.state_dict(), comm=comm)
        reducers = self.taking.reducers
        self.final_density = sum(r.k for r in reducers) / sum(r.layout.size for r in reducers)
        self.reduction.dense_steps = args.dense_warmup

    def start(self, resume: Callable[[], None]) -> bool:
        """Return False on a spare, which has waited here, if it was never needed. Collective.

        Others go on where the run is when they join it, or where ``resume()`` brings it.
        """
        team = team_of(self.comm)
        state = team.stand_by() if team is not None else None
        waits = team is not None and team.waits
        if state is not None:
            self.resumption.join(state, self.survivors)
        elif not waits:
            resume()
        return not waits

    def run(self) -> Outcome:
        """Train for ``args.epochs`` epochs or ``args.max_steps`` steps, whichever ends first."""
        began = time.perf_counter()
        with closing(self.journal):
            if self.args.watch_every:
                self.reduction.watch(self.args.watch_every, self.progress.steps)
            while self.progress.steps < self.limit or not self.progress.recorded:
                epoch, first = divmod(self.progress.steps, self.task.steps)
                self._epoch(epoch, first)
                self._flush(epoch)  # the latest time: a resumed run may have nothing left to train
                with self.taking.global_parameters():
                    self.progress.scores = evaluate(self.task, self.comm)
                self.journal.epoch(self._now(epoch), self.progress.meter, self.progress.seconds, self.progress.scores)
                self.progress.meter, self.progress.seconds, self.progress.recorded = Meter(), 0.0, True
                if self.progress.steps % self.task.steps == 0:
                    self._save()
        if self.recorder is not None and (said := self.recorder.draw(self.comm)):
            print(said)
        headline, same = self.task.headline, identical(self.task.model, self.comm)
        seconds = time.perf_counter() - began
        score, loss, usual = self.progress.scores[headline], self.progress.scores["loss"], self._usual_step()
        return Outcome(
            headline,
            score,
            loss,
            same,
            self.progress.steps,
            seconds,
            usual,
            digest(self.task.model),
            self.journal.mb_sent,
            self._dense_bytes() * self.journal.counted / 1e6,
        )

    def predicted(self) -> str:
        """Return a line about steps on a slow link, see `journal.predicted`; empty on a GPU."""
        sizes = [parameter.numel() for parameter in self.task.model.parameters() if parameter.device.type == "cpu"]
        if not sizes or not self.journal.batch:
            return ""
        return predicted(self.args, sum(sizes), self.final_density, self.comm.size, self.journal.batch)

    def _epoch(self, epoch: int, first: int) -> None:
        self.task.model.train()
        start = self.clock()
        began = start - self.progress.seconds
        for number, batch in self._batches(epoch, first):
            self._prepare(epoch + number / self.task.steps)
            step = self._step(batch, start)
            self.progress.meter.add(step)
            self.progress.recorded = False
            start = self.clock()
            self.progress.seconds = start - began
            if self._is_due(self.args.watch_every, self.progress.steps):
                self.journal.watch(self._now(epoch), self.reduction.quality)
            self.journal.step(self._now(epoch), step, self.progress.meter, self.progress.seconds)
            self._flush(epoch)
            if self.progress.steps % self.task.steps:  # the test comes first at the end of an epoch
                self._save()

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[int, Any]]:
        last = int(min(self.task.steps, first + self.limit - self.progress.steps))
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
        steps, few = self.progress.steps, self.survivors.too_few()
        ended = steps == self.limit
        if self.checkpoints is None:
            if few and not ended:
                raise Preempted(f"{few}; there is no checkpoint of step {steps} without --checkpoint-every")
            return
        interrupted = bool(few) or self.checkpoints.interrupted(steps)
        if ended or interrupted or self._is_due(self.args.checkpoint_every, steps):
            self.journal.check(steps, self.progress.meter)
            written = self.checkpoints.write(steps, self.resumption.state)
            if interrupted and not ended:
                lost = "but there is no checkpoint of it, see above"
                then = f"--resume {written} goes on from there" if written else lost
                raise Preempted(f"stopped after step {steps} {f'because {few}' if few else 'as told'}; {then}")

    def _prepare(self, epoch: float) -> None:
        """Set learning rate, density and random seed for the next step, ``epoch`` epochs into training.

        The seed depends on the step and the rank alone, so that dropout is the same in a run that is resumed here.
        """
        self.reduction.density = density(epoch, self.final_density, self.args.density_warmup)
        self.reduction.check_every = int(self._is_due(self.args.check_every, self.progress.steps + 1))
        if self.args.dense_warmup and self.progress.steps in (0, self.args.dense_warmup):
            self.durations = []
        for group in self.taking.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, self.args, self.ranks)
        torch.manual_seed(step_seed(self.args.seed, self.progress.steps, self.task.share.rank))

    def _step(self, batch: Any, start: float) -> Meter:
        step = self.taking.take(batch, start, self.clock)
        self.progress.steps += 1
        measuring = (self.args.check_every, self.args.watch_every)  # takes two dense allreduces more
        if not any(self._is_due(every, self.progress.steps) for every in measuring):
            self.durations.append(step.stamps.updated - start)
        if self.recorder is not None:
            self.recorder.add(self.progress.steps, step.stamps)
        return step.meter

    def _flush(self, epoch: int) -> None:
        progress = self.progress
        if progress.steps < self.limit or progress.flushed == progress.steps:
            return
        start = time.perf_counter()
        self.reduction.check_every = int(self._is_due(self.args.check_every, progress.steps))
        if (meter := self.taking.finish()) is None:
            return
        meter.exposed = time.perf_counter() - start
        progress.meter.add(meter)
        progress.seconds += meter.exposed
        progress.flushed = progress.steps
        if self.args.flush:
            self.journal.flush(self._now(epoch), meter.sent, meter.exposed)

    @staticmethod
    def _is_due(every: int, step: int) -> bool:
        return every > 0 and step % every == 0

    def _usual_step(self) -> float | None:
        """Return the median step time, see `Outcome.step_seconds`; collective."""
        if not self.durations:
            return None
        usual = np.median(self.durations[2:] or self.durations)
        total, ranks = self.comm.allreduce(np.array([usual, 1]), control=True)
        return float(total / ranks)

    def _dense_bytes(self) -> float:
        layouts = [reducer.layout for reducer in self.taking.reducers]
        return sum(Dense().bound(layout, layout.size, self.ranks).payload(8, 4) for layout in layouts)

    def _now(self, epoch: int) -> dict[str, Any]:
        return {"epoch": epoch + 1, "step": self.progress.steps, "lr": self.taking.optimizer.param_groups[0]["lr"]}


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of torch's generator in step number ``step`` on ``rank``."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
