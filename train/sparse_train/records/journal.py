"""Report on a run: a progress bar, records of steps and epochs, a few lines in between and at the end."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.cli.progress import Bar
from sparse_mpi.comm import Comm
from sparse_mpi.monitor.watch import Quality
from sparse_mpi.predict import advise
from sparse_mpi.predict.advice import every
from sparse_mpi.predict.ways import BASELINE, table
from sparse_mpi.reduction.arguments import usual_density
from sparse_mpi.training.adam_steps import TRAVELLING
from sparse_train.options.reduction import algorithm_options
from sparse_train.ranks.job import JobError
from sparse_train.records.metrics import PARTS, WORK, Meter, Metrics, plot
from sparse_train.tasks.task import Task

LEGEND = """\
selected: entries that a rank selects in a step; global: entries of the sum
compute: batch, forward and backward pass; exposed: reduction after the backward pass; update: the optimizer"""


class Outcome(NamedTuple):
    """How training ended."""

    headline: str  # the name of the score
    score: float  # score on the test data
    loss: float  # there, too
    identical: bool  # True: the replicas are identical, to the bit
    steps: int
    seconds: float
    step_seconds: float | None  # median of the last reducer's unchecked steps, but its first two; mean over the ranks
    digest: str  # digest of parameters and buffers, see `survivors.digest`
    mb_sent: float  # MB sent by a rank in the steps since this process began; mean over the ranks
    mb_dense: float  # MB that a rank would have sent in them with dense sums, by the convention of `Traffic`


class Journal:
    """The reports of one run. Only rank 0 prints and shows a bar."""

    def __init__(self, task: Task, args: Namespace, comm: Comm, metrics: Metrics, steps: int) -> None:
        self._task, self._args, self._comm, self._metrics = task, args, comm, metrics
        self._watched = ""  # the last measured quality, beside the bar
        self._warned = False  # True: a quality of which nothing is known was reported
        self._steps = steps
        self.counted, self.mb_sent = 0.0, 0.0  # steps of the epochs so far, and a rank's MB in them
        self.batch = 0.0  # seconds of a rank in a step of the last epoch, reductions aside
        self.bar = self._bar(0)

    def _bar(self, step: int) -> Bar:
        return Bar(self._steps, "first step", self._comm.rank == 0 and self._args.progress, step)

    def close(self) -> None:
        self.bar.close()

    def resume(self, step: int) -> None:
        self.bar = self._bar(step)

    def step(self, now: Mapping[str, Any], step: Meter, epoch: Meter, seconds: float) -> None:
        due = (now["step"] - 1) % self._args.log_every == 0  # else sums stay on the device
        if due:
            scores = known(self._task.scores(step.sums))
            self._metrics.write("step", **now, **scores, **step.means())
        if not self.bar.shown and self._args.progress and self._comm.rank == 0:  # the ranks before this one are lost
            self.bar = self._bar(now["step"] - 1)
        self.bar.title(f"epoch {now['epoch']}/{self._args.epochs}")
        if due and self.bar.shown:
            self.bar.say(self._bar_text(step, epoch, seconds))
        self.bar.update()

    def watch(self, now: Mapping[str, Any], quality: Quality | None) -> None:
        """Record the quality of a step's total, and show it beside the bar; None, of a step that failed, is nothing.

        Warn once where it leaves the range in which training was compared with dense training.
        """
        if quality is None:
            return
        shown = {"energy": quality.captured, "xi": quality.xi, "wait": quality.wait}
        self._metrics.write("watch", **now, **shown)
        if quality.advice and not self._warned and self._comm.rank == 0:
            self.bar.write(f"WARNING: {quality.advice}", sys.stderr)
        self._warned |= bool(quality.advice)
        self._watched = f", energy {quality.captured:.2f}, xi {quality.xi:.2f}, waited {quality.wait:.0f} steps"

    def flush(self, now: Mapping[str, Any], sent: float, seconds: float) -> None:
        """Record and print the cost of sending all residuals: this rank's bytes, and seconds.

        The bytes are also in the record of the next epoch.
        """
        self._metrics.write("flush", **now, mb_sent=sent / 1e6, seconds=seconds)
        if self._comm.rank == 0:
            self.bar.write(f"flush after step {now['step']}: {sent / 1e6:.2f} MB, {seconds:.2f} s")

    def epoch(self, now: Mapping[str, Any], meter: Meter, seconds: float, test: Mapping[str, float]) -> None:
        everybody = meter.summed(self._comm)
        self.counted += meter.steps
        self.mb_sent += everybody.sent / self._comm.size / 1e6
        train = known(self._task.scores(everybody.sums))
        if not math.isfinite(train["loss"] + test["loss"]):
            raise _diverged(now["epoch"], f"the loss is {train['loss']}")
        means = everybody.means() | {"items_per_second": everybody.items / seconds, "seconds": seconds}
        self.batch = means["compute_seconds"] + means["update_seconds"]
        tested = {f"test_{name}": value for name, value in test.items()}
        self._metrics.write("epoch", **now, **train, **tested, **means)
        if self._comm.rank == 0:
            scores = self._shown(test, "test ", 4), self._shown(train, "", 4)
            self.bar.write(f"epoch {now['epoch']}: {', '.join(filter(None, scores))}, lr {now['lr']:.4g}")
            self.bar.write(f"    {self._work_text(means, meter.steps)}")

    def check(self, step: int, meter: Meter) -> None:
        """Check that loss and weights are finite, before a checkpoint is written; collective.

        Raises JobError: they are not, on any rank; raised on all.
        """
        everybody = meter.summed(self._comm)
        loss = self._task.scores(everybody.sums)["loss"] if everybody.steps else 0.0
        finite = math.isfinite(loss) and all(bool(p.isfinite().all()) for p in self._task.model.parameters())
        if self._comm.allreduce(np.array([not finite], np.int32), "max", control=True)[0]:
            which = f"the loss is {loss}" if not math.isfinite(loss) else "weights are no finite numbers any more"
            raise _diverged((step - 1) // self._task.steps + 1, which)

    def _bar_text(self, step: Meter, epoch: Meter, seconds: float) -> str:
        loss = self._task.scores(epoch.sums)["loss"]
        rate = epoch.items * self._comm.size / seconds
        return f"loss {loss:.3f}, {rate:.0f} {self._task.items}/s, {step.sent / 1e6:.3g} MB{self._watched}"

    def _work_text(self, means: Mapping[str, float], steps: float) -> str:
        def shown(parts: Sequence[str]) -> str:
            return ", ".join(f"{part} {means[f'{part}_seconds'] * steps:.1f}" for part in parts)

        return (
            f"{means['items_per_second']:.0f} {self._task.items}/s, selected {means['selected']:.0f}, "
            f"global {means['total']:.0f}, {means['mb_sent']:.2f} MB/step\n"
            f"    seconds: {shown(PARTS)}; of reductions: {shown(WORK)}"
        )

    def _shown(self, scores: Mapping[str, float], prefix: str, digits: int) -> str:
        names = sorted(scores, key=lambda name: name != self._task.headline)
        return ", ".join(f"{prefix}{name} {scores[name]:.{digits}f}" for name in names)


def _diverged(epoch: int, how: str) -> JobError:
    return JobError(f"training diverged in epoch {epoch}: {how}; try a lower --lr")


def known(scores: Mapping[str, float]) -> dict[str, float]:
    """Return ``scores`` without NaNs, which only evaluation computes; the loss always stays."""
    return {name: value for name, value in scores.items() if name == "loss" or not math.isnan(value)}


def predicted(args: Namespace, n: int, density: float, ranks: int, batch: float) -> str:
    """Return a line about steps at 1 Gbit/s: dense, and as trained; empty where this cannot be predicted.

    ``n`` elements are reduced at a ``density``; a rank computes for ``batch`` seconds in a step.
    """
    way = ":".join([args.algo, *(f"{name}={value}" for name, value in algorithm_options(args).items())])
    if ranks == 1 or way not in table():
        return ""
    if args.momentum_by == TRAVELLING:  # moments take bytes: at the usual densities all bytes are equal
        density *= usual_density("elect") / usual_density("elect", second_moment=True)
    how: dict[str, Any] = {"on": "cpu", "ranks": ranks, "batch_seconds": batch, "overlap": bool(args.overlap)}
    answer = advise(n, "1gbit", algorithms=(way,), densities=(min(density, 1.0),), **how)
    text = f"predicted, not measured: at 1 Gbit/s a rank a step takes {1e3 * answer.dense.step:,.0f} ms dense"
    if way != BASELINE:
        sparse = every(answer.faster[0], args.local_steps or 1, batch)
        text += f" and {1e3 * sparse.step:,.0f} ms as trained"
    return f"{text}; {1e3 * batch:,.0f} ms of it are computing, as here"


def conclude(outcome: Outcome, args: Namespace, comm: Comm, metrics: Metrics, more: str = "") -> None:
    """Write, draw and print how training ended, with a line ``more``.

    Raises JobError: the replicas are not identical.
    """
    metrics.write("final", **outcome._asdict())
    if comm.rank == 0:
        print(f"metrics in {args.out}" + (f", plot in {plot(args.out)}" if args.plot else ""))
        ratio = f", {outcome.mb_dense / outcome.mb_sent:.1f} times as much" if outcome.mb_sent else ""
        print(f"traffic: a rank sent {outcome.mb_sent:.1f} MB; dense would have sent {outcome.mb_dense:.1f} MB{ratio}")
        if more:
            print(more)
        print(
            f"final: test {outcome.headline} {outcome.score:.4f}, "
            f"replicas {'identical' if outcome.identical else 'DIFFER'}, "
            f"{outcome.steps} steps, {outcome.seconds:.1f} s"
        )
    if not outcome.identical:
        raise JobError("the replicas differ after training; --check-every 1 shows in which step that starts")
