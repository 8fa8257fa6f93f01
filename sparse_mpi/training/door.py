"""The verbs of the four doors of training: `Door`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import add
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch.optim import Optimizer

from sparse_mpi.checks import check_range, check_switch, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import check_consistency, same_on_all_ranks, tell
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.monitor.watch import Quality
from sparse_mpi.reduction.form import WHOLE
from sparse_mpi.reduction.snapshot import steps_in
from sparse_mpi.training.clip_line import ClipLine
from sparse_mpi.training.named_gradients import NamedGradients, names_in
from sparse_mpi.training.optimizer_rule import Rule
from sparse_mpi.training.optimizer_steps import OptimizerSteps
from sparse_mpi.training.parameters import local, sharded_like


class ReplicatedState:
    """A door's state beside vectors and number of steps, equal on all ranks, in plain values: here nothing."""

    def state(self) -> dict[str, Any]:
        return {}

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return these values of a ``state``, or raise ValueError."""
        return {}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over the values that `read` has returned on all ranks."""


class Door:
    """The verbs of a door of training: each has one name and one meaning at all four.

    A door adds when its vectors are reduced, see docs/explanation/doors.md.

    Args:
        optimizer: steps along the reduced gradients; None where the door does not know it.
        average: True for the mean over the ranks in ``.grad``, False for the sum.
        beside: further state, equal on all ranks; None: nothing.

    Attributes:
        gradients: vectors of the model's parameters.
        density: share of entries to send in the next steps; None: as given at first.
        check_every: one in so many steps asserts both laws, 0 for never; costs two dense allreduces. Equal on all
            ranks.
        dense_steps: number of dense first steps.
        steps: number of steps reduced so far.
        skipped: number of steps left out so far, as a gradient of some rank was not finite.
        clip_line: recognises a clip behind the reduction.
    """

    def __init__(
        self,
        gradients: NamedGradients,
        optimizer: Optimizer | None,
        *,
        dense_steps: int = 0,
        average: bool = True,
        beside: ReplicatedState | None = None,
    ) -> None:
        self.gradients = gradients
        self._beside = ReplicatedState() if beside is None else beside
        self.density: float | None = None
        self.check_every: int = 0
        self.dense_steps: int = dense_steps
        self.steps: int = 0
        self.skipped: int = 0
        self.clip_line = ClipLine(gradients)
        self._average = average
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._steps: ref[OptimizerSteps] | None = None  # weak: it knows this door

    def lead(self, rule: Rule, ready: Callable[[ExitStack], None]) -> None:
        """Have the optimizer step by ``rule``, see `OptimizerSteps`."""
        if (optimizer := self.optimizer) is not None:
            self.gradients.follow(optimizer)
            self._steps = ref(
                OptimizerSteps(
                    optimizer, rule, self.gradients, divisor=self.divisor, ready=ready, clip_line=self.clip_line
                )
            )

    @property
    def comm(self) -> Comm:
        """Return the ranks that reduce; RuntimeError before they have met."""
        return self.gradients.comm

    @property
    def optimizer(self) -> Optimizer | None:
        """Return the optimizer, if the door knows one."""
        return None if self._optimizer is None else self._optimizer()

    def divisor(self) -> float:
        """Return the divisor of sums over the ranks."""
        return self.comm.size if self._average else 1.0

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of `GradientVector.start` in the next step."""
        number = self._number
        dense = number < self.dense_steps
        check = self.check_every > 0 and number % self.check_every == 0
        return {"density": None if dense else self.density, "check": check, "dense": dense}

    @property
    def _number(self) -> int:
        return self.steps

    @property
    def report(self) -> StepReport | None:
        """Return the report of this rank's last step, all vectors together, if any."""
        return combined((vector.reducer.report for vector in self.gradients), self.skipped)

    def watch(self, every: int, step: int = 0) -> None:
        """Measure the quality of one step out of ``every``, from the one after ``step`` on, see `Watch`.

        Costs two dense allreduces for each. Raises TypeError or ValueError if ``every`` is below 1.
        """
        check_whole("every", every, 1, "step")
        self.gradients.watch(every, step)

    @property
    def quality(self) -> Quality | None:
        """Return the quality of the last measured step, all vectors together, if any."""
        watches = [vector.reducer.watch for vector in self.gradients]
        known = [watch.quality for watch in watches if watch is not None and watch.quality is not None]
        return reduce(add, known) if known else None

    def residuals(self) -> dict[str, np.ndarray]:
        """Return this rank's residual of each parameter, ``(n,)`` in host memory, by name; between steps.

        Without parameters that were never reduced, or have sparse tensors as gradients.
        """
        return self.gradients.residuals()

    def flush(self, step: bool = True) -> None:
        """Step once along the residuals of all ranks, which become 0, but for frozen parameters. Collective.

        For the end of training or an evaluation that matters; costs a dense allreduce. The step is without weight
        decay, and in torch's SGD without momentum, which would apply late sums again. Gradients are cleared then.

        Args:
            step: True has the optimizer step. False only sets ``.grad`` for its next step; for an optimizer that the
                door does not know.

        Raises:
            RuntimeError: gradients wait to be reduced, or to be stepped along; raised on every rank.
            ValueError: the door does not know the optimizer that is to step; raised on every rank.
            Exception: as `SparseAllreduce.flush` does; raised on every rank, with nothing under way any more.
        """
        self._meet()

        def agree(comm: Comm) -> None:
            with same_on_all_ranks(comm) as say:
                check_switch("step", step)
                self._refuse_flush()
                if step and self.optimizer is None:
                    raise ValueError(
                        "step must be False where the optimizer is not known, got True; give optimizer=, or call "
                        "flush(step=False) and then the optimizer's step()"
                    )
                say(call="flush", step=step)

        self.gradients.live.ask(agree)
        self._fill()
        if step:
            self._step_along()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, to continue bit for bit, as plain values and tensors; between steps."""
        limit = {} if self.clip_line.limit is None else {"clip_norm": self.clip_line.limit}
        return self.gradients.state_dict(steps=self.steps, **limit, **self._beside.state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's `state_dict`, on the same number of ranks, for the same parameters. Collective.

        Raises:
            ValueError: it is of other parameters or arguments, or as for `SparseAllreduce.load_state_dict`; raised on
                every rank.
        """
        self._meet()
        self.take_over([state], self.comm.size)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks, on any number P of ranks, see `SparseAllreduce.take_over`. Collective.

        Where ``.grad`` is a mean, residuals are scaled by the ratio of the numbers of ranks.

        Args:
            states: states of the old ranks r, r + P, r + 2 P, ... on rank r, as `checkpoint.load` deals them out.
            ranks: number of old ranks.

        Raises:
            ValueError: a state is of other parameters, arguments, or another step, or as for
                `SparseAllreduce.take_over`; raised on every rank.
        """
        self._meet()
        self.gradients.live.ask(lambda comm: None)  # wait for work under way, which uses the ranks and the state
        comm = self.comm
        with same_on_all_ranks(comm) as say:
            read = self.gradients.checked(states, ranks)
            about = [self._beside.read(state) | _counted(state) | {"vectors": names_in(state)} for state in read]
            say(call="take_over", ranks=ranks)
        # Rank 0 has a state, whatever the numbers of ranks
        told = json.loads(tell(comm, json.dumps(about[0] if about else None)))
        with same_on_all_ranks(comm):
            for own in about:
                if other := [name for name in told if own[name] != told[name]]:
                    raise ValueError(
                        f"state[{other[0]!r}] must be that of all ranks, {told[other[0]]!r:.200}, got "
                        f"{own[other[0]]!r:.200}; load the states that all ranks have saved together"
                    )
        self.steps = told["steps"]
        self._beside.restore(told)
        if (limit := told["clip_norm"]) is not None:
            self.clip_line.begin(limit)
        self.gradients.deal(read, ranks, self._average)

    def detach(self) -> None:
        """Train as torch does from now on. Collective; residuals stay here: `flush` before."""
        self._meet()
        self.gradients.live.ask(lambda comm: check_consistency(comm, "call=detach"))
        if self._steps is not None and (steps := self._steps()) is not None:
            steps.remove()

    def _meet(self) -> None:
        """Have all ranks know the door's vectors, with nothing under way; collective where new."""

    def _refuse_flush(self) -> None:
        """Raise RuntimeError where this rank cannot flush now."""

    def _step_along(self) -> None:
        if (optimizer := self.optimizer) is not None:
            optimizer.step()
            optimizer.zero_grad()

    @torch.no_grad()
    def _fill(self) -> None:
        owed = {}
        for parameter, total in self.gradients.flush(self.options["check"]):
            owed[parameter] = (total / self.divisor()).to(local(parameter))
        for parameter in self.gradients.parameters.values():
            mean = owed.get(parameter)
            # None makes optimizers leave a parameter alone that owes nothing. Shards of one must be alike
            if not parameter.requires_grad or mean is None or not (parameter is not local(parameter) or mean.any()):
                parameter.grad = None
            elif parameter.grad is not None:  # perhaps a view of a buffer: write into it, and do not replace it
                local(parameter.grad).copy_(mean)
            else:
                parameter.grad = sharded_like(parameter, mean)


def _counted(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of steps in a ``state``, and the norm of a recognised clip, or raise ValueError."""
    steps, limit = steps_in([state])[0], state.get("clip_norm")
    if limit is not None:
        check_range("state['clip_norm']", limit, "(0, inf)", WHOLE)
    return {"steps": steps, "clip_norm": limit}
