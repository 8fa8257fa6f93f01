"""What a training run needs to go on: in its checkpoints, and on ranks that join it."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sparse_mpi.comm import Comm
from sparse_mpi.tools.plan import store
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.records.journal import Journal
from sparse_train.records.meter import Meter
from sparse_train.tasks.task import Task
from sparse_train.trainer.checkpoints import State, step_of
from sparse_train.trainer.planning import Planning
from sparse_train.trainer.survivors import Survivors


class Resumable:
    """The part of `Training` that tells where it is, and goes on from there."""

    task: Task
    optimizer: Any
    args: Namespace
    comm: Comm
    planning: Planning | None
    reduction: GradientReduction
    journal: Journal
    survivors: Survivors
    algorithms: Sequence[Any]  # those after a dense warm-up
    meter: Meter
    seconds: float
    steps: int
    recorded: bool
    flushed: int
    scores: dict[str, float]

    def state(self) -> State:
        """Return copies of all that `resume` needs to go on to the same bits."""
        epoch, first = divmod(self.steps, self.task.steps)
        plan = self.planning and self.planning.plan
        shared = self._shared() | {
            "plan": store.dumps(plan) if plan else "",
            "choices": self.planning.choices if self.planning else [],
            "epoch": epoch,
            "first": first,
            "epoch_steps": self.task.steps,
        }
        self._finish_warmup()
        own = {
            "reduction": self.reduction.state_dict(),
            "buffers": {name: buffer.cpu().numpy().copy() for name, buffer in self.task.model.named_buffers()},
            "meter": vars(self.meter) | {"sums": self.meter.sums.cpu().numpy().copy()},
            "seconds": self.seconds,
        }
        return State(shared, own)

    def given(self) -> bytes:
        """Return what `join` needs on a rank that trains from the next step on: all but what this rank owes."""
        state = {"steps": self.steps, "seconds": self.seconds, "kinds": self.reduction.kinds()}
        file = io.BytesIO()
        torch.save(self._shared() | state | {"survivors": self.survivors.state()}, file)
        return file.getvalue()

    def join(self, state: bytes) -> None:
        """Go on where another rank is that has `given` this."""
        shared = torch.load(io.BytesIO(state), "cpu", weights_only=True)
        self._load(shared)
        self.meter, self.seconds, self.steps = self._empty(shared), shared["seconds"], shared["steps"]
        self.flushed = self.steps if shared["flushed"] else 0
        self.reduction.know_kinds(shared["kinds"])
        self.survivors.join(shared["survivors"])
        self.journal.resume(self.steps, shared["coverages"])

    def _shared(self) -> dict[str, Any]:
        """Return what is the same on all ranks, but for buffers."""
        return {
            "model": self.task.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "recorded": self.recorded,
            "flushed": self.flushed == self.steps > 0,
            "sums": self.meter.sums.numel(),
            "scores": {name: float(score) for name, score in self.scores.items()},
            "coverages": list(self.journal.coverages),
        }

    def _empty(self, shared: Mapping[str, Any]) -> Meter:
        """Return a meter of no steps, with as many sums as others have."""
        device = next(self.task.model.parameters()).device
        return Meter(torch.zeros(shared["sums"], dtype=torch.float64, device=device))

    def _load(self, shared: Mapping[str, Any]) -> None:
        """Take over model, optimizer and scores; the optimizer's options stay those of this run."""
        self.task.model.load_state_dict(shared["model"])
        with self._same_options(self.optimizer):
            self.optimizer.load_state_dict(shared["optimizer"])
        self.recorded, self.scores = shared["recorded"], shared["scores"]

    @contextmanager
    def _same_options(self, optimizer: Any) -> Iterator[None]:
        """Keep the options of ``optimizer`` as they are, whatever is loaded into it in this context."""
        chosen = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        yield
        for group, options in zip(optimizer.param_groups, chosen, strict=True):
            group.update(options)

    def resume(self, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]], ranks: int) -> None:
        """Go on where a run was when it had this `state`.

        Args:
            shared: what was the same on all its ranks.
            own: what ranks r, r + P, r + 2 P, ... had of their own on rank r of P.
            ranks: how many there were. On another number, the epoch goes on at the same share of its steps.
        """
        self._load(shared)
        if own:
            for name, buffer in self.task.model.named_buffers():
                buffer.copy_(torch.from_numpy(own[0]["buffers"][name]))
        lasted = own[0]["seconds"] if own else 0.0
        self.seconds = float(self.comm.allreduce(np.array([lasted]), "max", control=True)[0])
        self.meter = self._empty(shared)
        for state in own:
            sums = torch.from_numpy(state["meter"]["sums"]).to(self.meter.sums.device)
            self.meter.add(Meter(**state["meter"] | {"sums": sums}))
        self.steps = step_of(shared, self.task.steps)
        self._finish_warmup()
        self.reduction.take_over([state["reduction"] for state in own], ranks)
        self.flushed = self.steps if shared.get("flushed") else 0
        self.journal.resume(self.steps, shared["coverages"])

    def _finish_warmup(self) -> None:
        """Return to the algorithms of the time after a dense warm-up; without one, change nothing.

        Checkpoints are made and loaded with these: they share their residuals with the dense ones, which have no other
        state, so that a resumed run may end its warm-up earlier or later.
        """
        if self.args.dense_warmup:
            self.reduction.use(self.algorithms)
