"""Programs of calls around a training step, what one rank does by them, and what torch does: for `test_call_sequences`.

A program is run twice: by the ranks of a door of this library, and by `Torch`, which goes through it with all
ranks in one process and takes the mean of their gradients where the door is to reduce them.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from sparse_mpi.comm.scheduler import DeadlockError, MismatchError

KINDS = ("RuntimeError", "ValueError", "TypeError")
LEAST_WORDS = 40  # characters of an error
STEPS = ("step", "bare_step", "skip")
PARTIAL = tuple((name, 1) for name in ("backward", "unreduced", "closure"))  # calls that use the first layer alone
CHANGED = ("clip", "change", "zero_grad")  # calls that change gradients
# By door, the calls behind which gradients are reduced
REDUCE = {"optimizer": ("synchronize",), **dict.fromkeys(("ddp", "fsdp"), ("backward", "overflow"))}
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
MAKE: dict[str, Callable] = {
    "sgd": partial(SGD, lr=0.2),
    "decay": partial(SGD, lr=0.2, weight_decay=0.05),
    "momentum": partial(SGD, lr=0.1, momentum=0.8),
    "nesterov": partial(SGD, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
    "fused": partial(SGD, lr=0.1, momentum=0.8, fused=True),
    "adam": partial(Adam, lr=0.02),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
}
MOMENTS = ("adam", "adamw")
MODES = {name: (None, "local", "arrival", "second-moment") for name in MOMENTS} | {
    "sgd": (None,),
    "decay": (None, "global"),
    "momentum": (None, "local", "matched", "global", "corrected"),
    "nesterov": (None, "local", "matched", "global", "corrected"),
}


class Call(NamedTuple):
    """Something that all ranks do, or one rank alone; ``value`` says how."""

    name: str
    value: Any = None
    on: int | None = None

    def __repr__(self) -> str:
        return _short(self)


class Program(NamedTuple):
    """Calls, by which ``ranks`` train."""

    calls: tuple[Call, ...]
    ranks: int = 2
    optimizer: str = "sgd"
    momentum: str | None = None
    density: float = 1.0
    algorithm: str = "topka"
    overlap: bool = True
    passes: int = 1
    scaled: bool = False
    door: str = "optimizer"  # or "ddp" or "fsdp"
    schedule: int | None = None  # of the World

    def __repr__(self) -> str:
        return _short(self)

    @property
    def solo(self) -> bool:
        """Whether one rank does something that the others do not."""
        return any(call.on is not None for call in self.calls)

    @property
    def parts(self) -> bool:
        """Whether ranks of torch may come to differ, as along gradients that no pass has reduced."""
        return self.solo or any(call.name == "unreduced" for call in self.calls)

    @property
    def takes_momentum(self) -> bool:
        """Whether error feedback applies the momentum of the optimizer."""
        return self.optimizer in ("momentum", "nesterov", "fused") and self.momentum != "local"


def _short(row: Any) -> str:
    """Python for a named tuple, without what is as usual."""
    defaults = row._field_defaults
    said = [f"{k}={v!r}" for k, v in row._asdict().items() if k not in defaults or v != defaults[k]]
    return f"{type(row).__name__}({', '.join(said)})"


class Net(nn.Module):
    """Three layers, of which a loss uses all or the first alone, and one that may be added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)])
        self.more: nn.Linear | None = None

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        first, second, last = self.layers
        hidden = torch.tanh(first(x))
        if which == 1:
            return hidden
        return last(torch.tanh(second(hidden))) + (0 if self.more is None else self.more(x))


class Trainee:
    """What a rank trains with, and what it does by each call; doors add what is theirs.

    Attributes:
        number: of the call.
    """

    def __init__(self, program: Program, rank: int) -> None:
        self.program, self.rank, self.number = program, rank, 0
        self.net = Net()
        self.prepare()
        self.optimizer = MAKE[program.optimizer](self.net.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=program.scaled)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.model: Callable = self.net
        self.distribute()

    def prepare(self) -> None:
        """Do what comes before the optimizer is made."""

    def distribute(self) -> None:
        """Have gradients reduced."""

    def do(self, number: int, call: Call) -> None:
        self.number = number
        if call.on in (None, self.rank):
            getattr(self, call.name)(call.value)

    @property
    def parameters(self) -> list[torch.Tensor]:
        return list(self.net.parameters())

    def weights(self) -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in self.whole()]).numpy().copy()

    def whole(self) -> Sequence[torch.Tensor]:
        return self.parameters

    def loss(self, which: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1000 * self.number + self.rank)
        x, y = torch.randn(6, 4, generator=draw), torch.randn(6, 6, generator=draw)
        out = self.model(x.requires_grad_(), which)  # so that there is a backward pass, whatever is frozen
        return nn.functional.mse_loss(out, y[:, : out.shape[1]])

    def backward(self, which: int) -> None:
        self.scaler.scale(self.loss(which)).backward()

    def overflow(self, rank: int) -> None:
        """A backward pass of all ranks, in which a gradient of one of them overflows."""
        self.scaler.scale(self.loss(0) * (float("inf") if rank == self.rank else 1.0)).backward()

    def unreduced(self, which: int) -> None:
        """A backward pass whose gradients are kept for the next one."""
        with self.without_reduction():
            self.backward(which)

    def without_reduction(self) -> Any:
        return nullcontext()

    def zero_grad(self, to_none: bool) -> None:
        self.optimizer.zero_grad(set_to_none=to_none)

    def clip(self, norm: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, norm)

    @torch.no_grad()
    def change(self, how: str) -> None:
        for parameter in self.parameters if how != "none" else self.net.layers[1].parameters():
            if parameter.grad is None:
                continue
            if how == "in place":
                parameter.grad.mul_(0.5)
            elif how == "data":
                parameter.grad.data.mul_(0.5)
            elif how == "replace":
                parameter.grad = parameter.grad * 0.5
            elif how == "none":
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def step(self, _: None = None) -> None:
        self.scaler.step(self.optimizer)  # without a scale that is the optimizer's

    def bare_step(self, _: None) -> None:
        self.optimizer.step()

    def closure(self, which: int) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(which)
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def unscale(self, _: None) -> None:
        if self.program.scaled:
            self.scaler.unscale_(self.optimizer)

    def update(self, _: None) -> None:
        self.scaler.update()

    def rate(self, _: None) -> None:
        self.schedule.step()

    def freeze(self, layer: int) -> None:
        self.net.layers[layer].requires_grad_(False)

    def unfreeze(self, layer: int) -> None:
        self.net.layers[layer].requires_grad_(True)

    def add_group(self, _: None) -> None:
        if self.net.more is None:
            torch.manual_seed(1)
            self.net.more = nn.Linear(4, 2)
            self.optimizer.add_param_group({"params": self.net.more.parameters(), "lr": 0.05})

    def reload(self, _: None) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def copy(self, how: str) -> None:
        """Make a copy, which is a plain optimizer."""
        other = copy.deepcopy(self.optimizer) if how == "copy" else pickle.loads(pickle.dumps(self.optimizer))
        assert type(other) is type(self.optimizer) and not hasattr(other, "reduction")

    def synchronize(self, _: None) -> None:
        """Have ``.grad`` be the mean, of doors that have that call."""

    skip = step  # as gradients are

    def flush(self, _: None = None) -> None:
        """Step along what is owed, which at density 1 is nothing; hooks leave zeros of it."""
        self.zero_grad(True)
        for parameter in self.parameters if self.program.door != "optimizer" else ():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


class Alone(Trainee):
    """A rank in one process with all others, with gradients that wait for a pass that is reduced."""

    def __init__(self, program: Program, rank: int) -> None:
        super().__init__(program, rank)
        self.held: list[torch.Tensor | None] = [None] * len(self.parameters)

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

    def ddp(self, number: int, call: Call) -> None:
        """Reduce in a backward pass."""
        if call.name == "closure":
            self.each(number, Call("zero_grad", True))
            self.ddp(number, Call("backward", call.value))
            call = Call("bare_step")
        if call.name in STEPS and self.program.takes_momentum:
            self.rest()
        self.each(number, call)
        if call.name in ("backward", "overflow", "unreduced"):
            self.used = max(self.used, 2 if call[:2] in PARTIAL else 6)
        if call.name in ("backward", "overflow"):
            self.average(frozen=True, most=self.used)
            self.used = 0

    def rest(self) -> None:
        """Leave frozen layers alone where ``.grad`` is zero: momentum that was taken over waits until they train."""
        for parameter in (p for trainee in self.all for p in trainee.parameters):
            if not parameter.requires_grad and parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None

    def fsdp(self, number: int, call: Call) -> None:
        """Reduce what has come since the last pass that was reduced, and add that to ``.grad``."""
        if call.name == "closure":
            self.each(number, Call("zero_grad", True))
            self.fsdp(number, Call("backward", call.value))
            call = Call("bare_step")
        if call.name not in ("backward", "overflow", "unreduced"):
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
        exact &= program.door == "optimizer" or call.name != "flush"  # which leaves zeros, along which moments step
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
