"""A small model that trains under DistributedDataParallel, with the hook or without: `Run`; `ddp_job` runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

STEPS = 6
SMALL, LARGE = 0.03, 25.0  # MB of a bucket, from the second step on: four buckets, or one
OVERFLOW = 3  # the step in which a gradient overflows on one rank, where there is a loss scaler
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def none_of(optimizer: torch.optim.Optimizer) -> None:
    """Give no optimizer to the state."""


def state_of(net: torch.nn.Module, options: dict, **more) -> SparseState:
    """The state of the hook, of which ``options`` are the arguments and ``check_every``."""
    state = SparseState(net.named_parameters(), **{k: v for k, v in options.items() if k != "check_every"}, **more)
    state.check_every = options.get("check_every", 0)
    return state


class Run:
    """A model, its optimizer and, unless ``options`` is None, the state of the hook.

    Args:
        options: of the state.
        make: makes the optimizer.
        give: returns what of the optimizer the state is given.
        scaler: of the loss, the state's too.
        ddp: options of DDP, which wraps the model if there is a process group already, see `wrap`.
    """

    def __init__(
        self,
        options: dict | None,
        dtype: torch.dtype = torch.float32,
        bucket_cap_mb: float = SMALL,
        make: Callable = SGD,
        give: Callable = none_of,
        scaler: torch.amp.GradScaler | None = None,
        **ddp: bool,
    ) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten()]
        layers += [torch.nn.Linear(288, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
        self.net = torch.nn.Sequential(*layers).to(dtype)
        self.dtype, self.options, self.scaler = dtype, options, scaler
        self.optimizer = make(self.net.parameters())
        self.saw: dict = {"losses": [], "buckets": []}
        self.given = [torch.zeros_like(p, dtype=torch.float64) for p in self.net.parameters()]
        self.applied = [torch.zeros_like(p, dtype=torch.float64) for p in self.net.parameters()]
        if options is not None:
            more = {"optimizer": give(self.optimizer), "scaler": scaler}
            self.state = state_of(self.net, options, **more)
        if dist.is_initialized():
            self.wrap(bucket_cap_mb=bucket_cap_mb, **ddp)

    def wrap(self, **ddp: bool | float) -> None:
        """Put the model into DDP."""
        self.model = DistributedDataParallel(self.net, **ddp)
        if self.options is not None:
            self.model.register_comm_hook(self.state, self._hook)

    def _hook(self, state, bucket):
        self.saw["buckets"].append(len(bucket.parameters()))
        return sparse_hook(state, bucket)

    def step(self, number: int, passes: int = 1, closure: bool = False) -> None:
        """Take a step of so many backward passes, of which DDP reduces the last."""
        loss = self.optimizer.step(partial(self._reduced, number, passes)) if closure else self._reduced(number, passes)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif not closure:
            self.optimizer.step()
        self.saw["losses"].append(loss.item())

    def _reduced(self, number: int, passes: int) -> torch.Tensor:
        """Have DDP reduce the gradient of a batch and return the loss; note what was given and what came."""
        overflows = self.scaler is not None and number == OVERFLOW
        parameters = list(self.net.parameters())
        self.optimizer.zero_grad()
        for at in range(passes):
            draw = torch.Generator().manual_seed(1000 * number + 100 * at + dist.get_rank())
            x = torch.randn(16, 1, 8, 8, generator=draw).to(self.dtype)
            y = torch.randint(10, (16,), generator=draw)
            own = torch.autograd.grad(cross_entropy(self.net(x), y), parameters, allow_unused=True)
            for kept, gradient in zip(self.given, own if not overflows else [], strict=not overflows):
                kept += 0 if gradient is None else gradient
            with nullcontext() if at + 1 == passes else self.model.no_sync():
                loss = cross_entropy(self.model(x), y)
                large = loss * torch.inf if overflows and dist.get_rank() == 1 else loss
                (large if self.scaler is None else self.scaler.scale(large)).backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        for kept, parameter in zip(self.applied, parameters if not overflows else [], strict=not overflows):
            kept += 0 if parameter.grad is None else parameter.grad
        return loss

    def save(self) -> dict:
        """All that the run came to on this rank, each list flattened into one vector."""
        if self.options is not None:
            left = self.state.residuals()
            self.saw["residual"] = torch.cat([torch.from_numpy(left[n]) for n, _ in self.net.named_parameters()])
            self.saw["sent"] = self.state.comm.traffic.sent
        self.saw["groups"] = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        flat = {"parameters": list(self.net.parameters()), "given": self.given, "applied": self.applied}
        return self.saw | {name: torch.cat([x.detach().flatten() for x in parts]) for name, parts in flat.items()}


def straight(options: dict | None, dtype: torch.dtype = torch.float32, bucket_cap_mb: float = SMALL, **how) -> dict:
    run = Run(options, dtype, bucket_cap_mb, **how)
    for number in range(STEPS):
        run.step(number)
    return run.save()
