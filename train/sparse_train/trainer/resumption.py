"""The state of a training run: in its checkpoints, and for ranks that join it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparse_mpi.comm import Comm
from sparse_mpi.planning import store
from sparse_train.records.journal import Journal
from sparse_train.records.metrics import Meter
from sparse_train.tasks.task import Task
from sparse_train.trainer.checkpoints import State, step_of
from sparse_train.trainer.planning import Planning
from sparse_train.trainer.steps import Steps
from sparse_train.trainer.survivors import Survivors


@dataclass
class Progress:
    steps: int = 0
    meter: Meter = field(default_factory=Meter)  # this rank's work in the running epoch
    seconds: float = 0.0  # time that it took
    recorded: bool = True  # True: there is nothing in them yet
    flushed: int = 0  # the step after which all residuals were sent
    scores: dict[str, float] = field(default_factory=dict)  # scores of the last epoch


@dataclass
class Resumption:
    """The state of a run, saved and loaded. A resumed run may end its dense warm-up earlier or later."""

    task: Task
    taking: Steps
    comm: Comm
    planning: Planning | None
    journal: Journal
    progress: Progress

    def state(self) -> State:
        """Return copies of all that `resume` needs to go on to the same bits."""
        epoch, first = divmod(self.progress.steps, self.task.steps)
        plan = self.planning and self.planning.plan
        shared = self._shared() | {
            "model": self.taking.model_state(),
            "plan": store.dumps(plan) if plan else "",
            **{"epoch": epoch, "first": first, "epoch_steps": self.task.steps},
        }
        meter = self.progress.meter
        own = {
            "reduction": self.taking.reduction.state_dict(),
            "buffers": {name: buffer.cpu().numpy().copy() for name, buffer in self.task.model.named_buffers()},
            "meter": vars(meter) | {"sums": meter.sums.cpu().numpy().copy()},
            "seconds": self.progress.seconds,
        }
        return State(shared, own)

    def given(self, survivors: Survivors) -> bytes:
        state = {"steps": self.progress.steps, "seconds": self.progress.seconds, "survivors": survivors.state()}
        state |= {"model": self.task.model.state_dict()} | self.taking.reduction.bucketing.state()
        file = io.BytesIO()
        torch.save(self._shared() | state, file)
        return file.getvalue()

    def join(self, state: bytes, survivors: Survivors) -> None:
        """Go on where another rank is that has `given` this."""
        shared = torch.load(io.BytesIO(state), "cpu", weights_only=True)
        self._load(shared, shared["steps"], shared["seconds"])
        self.taking.reduction.bucketing.restore(shared)
        survivors.join(shared["survivors"])

    def resume(self, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]], ranks: int) -> None:
        """Go on where a run on ``ranks`` ranks was, of which ranks r, r + P, ... had ``own`` of this rank r of P."""
        lasted = np.array([own[0]["seconds"] if own else 0.0])
        with same_options(self.taking.optimizers):
            seconds = float(self.comm.allreduce(lasted, "max", control=True)[0])
            self._load(shared, step_of(shared, self.task.steps), seconds)
            for name, buffer in self.task.model.named_buffers() if own else ():
                buffer.copy_(torch.from_numpy(own[0]["buffers"][name]))
            for state in own:
                sums = torch.from_numpy(state["meter"]["sums"]).to(self.progress.meter.sums.device)
                self.progress.meter.add(Meter(**state["meter"] | {"sums": sums}))
            self.taking.reduction.take_over([state["reduction"] for state in own], ranks)

    def _shared(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "optimizer": self.taking.optimizer.state_dict(),
            "recorded": progress.recorded,
            "flushed": progress.flushed == progress.steps > 0,
            "sums": progress.meter.sums.numel(),
            "scores": {name: float(score) for name, score in progress.scores.items()},
        }

    def _load(self, shared: Mapping[str, Any], steps: int, seconds: float) -> None:
        self.task.model.load_state_dict(shared["model"])
        with same_options([self.taking.optimizer]):
            self.taking.optimizer.load_state_dict(shared["optimizer"])
        device, progress = next(self.task.model.parameters()).device, self.progress
        progress.recorded, progress.scores = shared["recorded"], shared["scores"]
        progress.steps, progress.seconds = steps, seconds
        progress.meter = Meter(torch.zeros(shared["sums"], dtype=torch.float64, device=device))
        progress.flushed = steps if shared.get("flushed") else 0
        self.journal.resume(steps)


@contextmanager
def same_options(optimizers: Sequence[Any]) -> Iterator[None]:
    """Preserve the options of the optimizers, whatever is loaded into them in this context."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    chosen = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    yield
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]  # others, after a load
    for group, options in zip(groups, chosen, strict=True):
        group.update(options)
