"""Programs of calls around a training step, run twice: by the ranks of a door, and by torch.

`Torch` goes through a program with all ranks in one process, and takes the mean of their gradients where the door is to
reduce them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from sparse_mpi.comm.scheduler import DeadlockError, MismatchError

from .calls import MAKE, Call, Program
from .doors import Trainee

KINDS = ("RuntimeError", "ValueError", "TypeError", "FloatingPointError")
LEAST_WORDS = 40  # characters of an error
STEPS = ("step", "bare_step", "skip")
PARTIAL = tuple((name, 1) for name in ("backward", "unreduced", "closure"))  # calls that use the first layer alone
CHANGED = ("clip", "change", "zero_grad")  # calls that change gradients
PASSES = ("backward", "overflow", "some")
# By door, the calls behind which gradients are reduced
REDUCE = {"optimizer": ("synchronize",), "local": (), **dict.fromkeys(("ddp", "fsdp"), PASSES)}


class Alone(Trainee):
    """A rank in one process with all others, with gradients that wait for a pass that is reduced."""

    def __init__(self, program: Program, rank: int) -> None:
        super().__init__(program, None, rank)
        self.held: list[torch.Tensor | None] = [None] * len(self.parameters)
        # What local steps start from, which the outer optimizer steps
        self.twins = [nn.Parameter(parameter.detach().clone()) for parameter in self.parameters]
        self.outer = MAKE[program.outer](self.twins)

    def whole(self) -> Sequence[torch.Tensor]:
        return self.twins if self.program.door == "local" else self.parameters

    def apart(self, backward: Callable[[], None]) -> None:
        """Have a pass of FSDP2 leave ``.grad`` alone, and keep its gradients."""
        before = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        backward()
        self.held = [_sum(held, p.grad) for held, p in zip(self.held, self.parameters, strict=True)]
        for parameter, gradient in zip(self.parameters, before, strict=True):
            parameter.grad = gradient


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if one is None else one if other is None else one + other


def _mean(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    given = [gradient for gradient in gradients if gradient is not None]
    return sum(given, torch.zeros_like(given[0])) / len(gradients) if given else None


class Seen(NamedTuple):
    """What a rank saw of a run.

    Attributes:
        weights: behind each call.
        error: of the next call, which ended the run; None if there was none.
        left: the weights behind that.
    """

    weights: list[np.ndarray]
    error: str | None = None
    left: np.ndarray | None = None


def run(make: Callable[[], Trainee], program: Program) -> Seen:
    """What a rank of a door sees of a program, up to its first error."""
    weights: list[np.ndarray] = []
    trainee = None
    try:
        trainee = make()
        for number, call in enumerate(program.calls):
            trainee.do(number, call)
            weights.append(trainee.weights())
    except (DeadlockError, MismatchError):
        raise
    except Exception as error:
        return Seen(weights, f"{type(error).__name__}: {error}", None if trainee is None else trainee.weights())
    return Seen(weights)


class Torch:
    """All ranks of a program in one process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.all = [Alone(program, rank) for rank in range(program.ranks)]
        self.reduced = False  # gradients are means, and nothing has come since
        self.used = 0  # parameters, in order, that passes have used which DDP has not reduced yet
        self.steps, self.moved = 0, False  # local steps, some of them since the last synchronisation

    def run(self) -> list[Seen]:
        """What each rank sees of the program, up to the first error of one."""
        seen: list[list[np.ndarray]] = [[] for _ in self.all]
        for number, call in enumerate(self.program.calls):
            try:
                getattr(self, self.program.door)(number, call)
            except Exception as error:
                return [Seen(weights, f"{type(error).__name__}: {error}") for weights in seen]
            for weights, trainee in zip(seen, self.all, strict=True):
                weights.append(trainee.weights())
        return [Seen(weights) for weights in seen]

    def each(self, number: int, call: Call) -> None:
        for trainee in self.all:
            trainee.do(number, call)

    def optimizer(self, number: int, call: Call) -> None:
        """Reduce in a step, unless `synchronize` has."""
        if call.name == "closure":
            self.each(number, Call("zero_grad", True))
            for trainee in self.all:
                trainee.number = number
                trainee.loss(call.value).backward()
            call = Call("bare_step")
        if call.name in ("step", "bare_step", "synchronize"):
            if not self.reduced:
                self.average()
            self.reduced = call.name == "synchronize"
        if call.name in ("step", "skip") and self.program.scaled:
            self.overflows()
        self.each(number, call)
        if call.name in ("skip", "flush"):
            self.reduced = False

    def opened(self, number: int, call: Call, door: Callable[[int, Call], None]) -> Call:
        """Take the pass of a closure at a door whose passes reduce; return the step that is left, or another call."""
        if call.name != "closure":
            return call
        self.each(number, Call("zero_grad", True))
        door(number, Call("backward", call.value))
        return Call("bare_step")

    def ddp(self, number: int, call: Call) -> None:
        """Reduce in a backward pass."""
        call = self.opened(number, call, self.ddp)
        if call.name in STEPS and self.program.takes_momentum:
            self.rest()
        self.each(number, call)
        if call.name in (*PASSES, "unreduced"):
            self.used = max(self.used, 2 if call[:2] in PARTIAL else 6)
        if call.name in PASSES:
            self.average(frozen=True, most=self.used)
            self.used = 0

    def rest(self) -> None:
        """Leave frozen layers alone where ``.grad`` is zero: momentum that was taken over waits until they train."""
        for parameter in (p for trainee in self.all for p in trainee.parameters):
            if not parameter.requires_grad and parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None

    def fsdp(self, number: int, call: Call) -> None:
        """Reduce what has come since the last pass that was reduced, and add that to ``.grad``."""
        call = self.opened(number, call, self.fsdp)
        if call.name not in (*PASSES, "unreduced"):
            self.each(number, call)
            return
        for trainee in self.all:
            trainee.apart(partial(trainee.do, number, call))
        if call.name != "unreduced":
            for place, parameters in enumerate(zip(*(trainee.parameters for trainee in self.all), strict=True)):
                mean = _mean([trainee.held[place] for trainee in self.all])
                for trainee, parameter in zip(self.all, parameters, strict=True):
                    own = None if mean is None else mean.clone()
                    parameter.grad, trainee.held[place] = _sum(parameter.grad, own), None

    def local(self, number: int, call: Call) -> None:
        """Step along the mean of what ranks have moved, every so many steps."""
        self.each(number, call)
        due = call.name in ("synchronize", "flush")
        if call.name in (*STEPS, "closure"):
            self.steps, self.moved = self.steps + 1, True
            due = self.steps % self.program.every == 0
        if due and self.moved:
            for place in range(len(self.all[0].twins)):
                mean = _mean([t.twins[place].detach() - t.parameters[place].detach() for t in self.all])
                for trainee in self.all:
                    trainee.twins[place].grad = mean
            for trainee in self.all:
                trainee.outer.step()
            self.moved = False
        if due:
            for trainee in self.all:
                nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(trainee.twins), trainee.parameters)

    def average(self, frozen: bool = False, most: int | None = None) -> None:
        """Make gradients the mean over the ranks, with zeros where one has none; without those that are frozen."""
        for parameters in zip(*(trainee.parameters[:most] for trainee in self.all), strict=True):
            mean = _mean([p.grad if p.requires_grad or frozen else None for p in parameters])
            for parameter in parameters:
                parameter.grad = None if mean is None else mean.clone()

    def overflows(self) -> None:
        """Let all scalers know what one of them has found in `unscale_`."""
        found = [t.scaler._per_optimizer_states[id(t.optimizer)]["found_inf_per_device"] for t in self.all]
        if any(bool(value) for tensors in found for value in tensors.values()):
            for value in (value for tensors in found for value in tensors.values()):
                value.fill_(1.0)


class Verdict(NamedTuple):
    """What is wrong with a run, and what became of it."""

    problem: str | None
    fate: str  # "trained", "refused", or "as in torch": weights differ between ranks, which torch's would, too


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


def stuck(program: Program, error: str) -> Verdict:
    """What it means that ranks wait for others: with torch's own errors on some ranks, they would in torch, too."""
    if program.solo and any(seen.error for seen in Torch(program).run()):
        return Verdict(None, "as in torch")
    return Verdict(f"ranks wait: {error}", "stuck")


def judge(program: Program, ranks: Sequence[Seen]) -> Verdict:
    """Compare what the ranks of a door saw with each other, and with torch where everything is sent."""
    alone, (first, *_) = Torch(program).run(), ranks
    errors, ends = [seen.error for seen in ranks], [len(seen.weights) for seen in ranks]
    together = len(set(ends)) == 1
    if any(errors):
        # On all ranks, in one call unless one rank has done something alone, and with words unless it is torch's own
        if not all(errors):
            return stuck(program, f"an error on some ranks alone: {errors}")
        if not together and not program.solo:
            return Verdict(f"errors in different calls {ends}: {errors}", "refused")
        poor = [e for e in errors if not e.startswith(KINDS) or len(e.partition(": ")[2]) < LEAST_WORDS]
        if poor and (alone[0].error is None or min(ends) < len(alone[0].weights)):
            return Verdict(f"an error that does not say enough: {poor[0]}", "refused")
    exact = program.density == 1 and program.momentum != "second-moment"
    stale = fresh = False  # gradients were stepped along, or are reduced
    for number, call in enumerate(program.calls[: min(ends)]):
        here = [seen.weights[number] for seen in ranks]
        expected = [seen.weights[number] for seen in alone if number < len(seen.weights)]
        if not all(same(one, here[0]) for one in here):
            if program.parts and expected and not all(same(one, expected[0]) for one in expected):
                return Verdict(None, "as in torch")
            return Verdict(f"weights differ between ranks behind call {number}, {call}", "trained")
        # Momentum that was taken over is in what is reduced: it is not torch's where a program steps along that again,
        # flushes it, or changes or clears it before a step
        odd = call.name == "flush" or (stale and call.name in STEPS) or (fresh and call.name in CHANGED)
        odd |= call.name == "skip" and not fresh
        exact &= not (program.takes_momentum and odd)
        # Of a unit of FSDP2 that no replica has used, momentum waits, also where .grad has zeros
        exact &= program.door != "fsdp" or program.optimizer in ("sgd", "decay") or call[:2] not in PARTIAL
        exact &= (
            program.door not in ("ddp", "fsdp") or call.name != "flush"
        )  # which leaves zeros, along which moments step
        stale = call.name in (*STEPS, "closure") or (stale and call[::2] != ("zero_grad", None))
        fresh = call.name in REDUCE[program.door] or (fresh and call.name not in STEPS)
        # Where torch's ranks differ from each other, or step along what is not finite, it says nothing more
        exact &= bool(expected) and all(same(one, expected[0]) for one in expected) and np.isfinite(expected[0]).all()
        if exact and not np.allclose(here[0], expected[0], rtol=1e-3, atol=2e-5, equal_nan=True):
            far = np.nanmax(np.abs(here[0] - expected[0]))
            return Verdict(f"weights are not torch's behind call {number}, {call}, by {far}", "trained")
    if any(errors) and together and first.left is not None and not all(same(seen.left, first.left) for seen in ranks):
        return Verdict(f"weights differ between ranks behind {errors[0]}", "refused")
    return Verdict(None, "refused" if any(errors) else "trained")
