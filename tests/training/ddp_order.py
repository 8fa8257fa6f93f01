"""Orders of calls, copies of a model and orders of memory, with the hook; `ddp_job` runs them under torchrun."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from ddp_loops import ADAMW, ALL, TOP, taken, whole
from ddp_mistakes import refused
from ddp_run import LARGE, SGD, STEPS, Run, straight
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

ARRIVAL = {"make": ADAMW, "give": whole, "bucket_cap_mb": LARGE}  # with an algorithm that carries no moments
PLAIN = partial(SGD, momentum=0.0)


def reduced(run: Run, number: int) -> None:
    """A backward pass that reduces."""
    draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    x, y = torch.randn(16, 1, 8, 8, generator=draw), torch.randint(10, (16,), generator=draw)
    cross_entropy(run.model(x), y).backward()


def two_passes(run: Run) -> dict:
    for number in range(STEPS):
        run.optimizer.zero_grad()
        for at in range(2):
            reduced(run, 10 * number + at)
        run.optimizer.step()
    return run.save()


def skips_a_step(run: Run) -> None:
    """The last rank alone leaves out a step."""
    for number in range(3):
        run.optimizer.zero_grad()
        reduced(run, number)
        if number != 1 or dist.get_rank() < dist.get_world_size() - 1:
            run.optimizer.step()


def flushed_too_early() -> None:
    run = taken("momentum")
    reduced(run, 0)
    run.state.flush()


def not_cleared(then: str, views: bool) -> None:
    """Behind zeros in place all is as ever."""
    run = taken("momentum", gradient_as_bucket_view=views)
    for number in range(4):
        run.optimizer.zero_grad(set_to_none=False)
        reduced(run, number)
        run.optimizer.step()
    if then == "backward":
        reduced(run, 4)
    run.optimizer.step()


def orders() -> dict[str, str]:
    """What the errors say of orders of calls that are none."""
    arrival = partial(Run, {"algorithm": "oktopk"}, **ARRIVAL)
    runs: dict[str, Callable] = {name: partial(taken, name) for name in ("momentum", "nesterov", "adamw")}
    runs |= {"arrival": arrival, "everything": partial(taken, "momentum", options=ALL)}
    said = {name: refused(lambda make=make: two_passes(make())) for name, make in runs.items()}
    said["one rank"] = refused(lambda: skips_a_step(taken("momentum")))
    for then in ("backward", "step"):
        said |= {f"{then} {views}": refused(lambda t=then, v=views: not_cleared(t, v)) for views in (True, False)}
    return said | {"flush": refused(flushed_too_early)}


def copied(at: int = 3) -> dict:
    """Train a copy in place of the model, by the state that the copy has."""
    run = Run(TOP, bucket_cap_mb=LARGE, make=PLAIN)
    for number in range(at):
        run.step(number)
    owed = run.state.residuals()
    run.model = copy.deepcopy(run.model)
    run.net, ((_, run.state),) = run.model.module, run.model._comm_hooks
    run.optimizer = PLAIN(run.net.parameters())
    run.saw["kept"] = all((owed[name] == left).all() for name, left in run.state.residuals().items())
    run.model.register_comm_hook(run.state, run._hook)
    for number in range(at, STEPS):
        run.step(number)
    return run.save()


def unused(alone: bool = True, **ddp: bool) -> dict:
    """The last layer is used by all ranks, by the last one ``alone`` if so, or by none."""
    run = Run(TOP, bucket_cap_mb=LARGE, make=PLAIN, find_unused_parameters=True, **ddp)
    layer, whole = run.net[5], run.net[5].forward
    for number in range(9):
        uses = (True, alone and dist.get_rank() == dist.get_world_size() - 1, False)[number % 3]
        layer.forward = whole if uses else lambda x: x[:, :10]
        run.step(number)
    return run.save()


class Product(torch.nn.Module):
    """Its gradient is what it is called with, to the bit."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


MODES = {"momentum": (SGD, "topka"), "adamw": (ADAMW, "elect"), "arrival": (ADAMW, "topka")}


def laid_out(name: str, turned: bool = False) -> torch.Tensor:
    """The weights behind some steps and a flush, in the usual order of memory, or in that of images, as views."""
    torch.manual_seed(1)
    weight, (make, algorithm) = torch.randn(8, 5, 3, 3), MODES[name]
    net = Product(weight.to(memory_format=torch.channels_last) if turned else weight)
    optimizer = make(net.parameters())
    state = SparseState(net.named_parameters(), optimizer=optimizer, algorithm=algorithm, density=0.1)
    model = DistributedDataParallel(net, gradient_as_bucket_view=turned)
    model.register_comm_hook(state, sparse_hook)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 5, 3, 3) * (1 + dist.get_rank())).backward()
        optimizer.step()
    state.flush()
    optimizer.step()
    return net.weight.detach()


ORDERS = {
    "orders": orders,
    "copied-plain": lambda: straight(TOP, bucket_cap_mb=LARGE, make=PLAIN),
    "copied": copied,
    "unused-own": unused,
    "unused-views": partial(unused, alone=False, gradient_as_bucket_view=True),
    **{f"laid out-{name}": partial(laid_out, name) for name in MODES},
    **{f"turned-{name}": partial(laid_out, name, turned=True) for name in MODES},
}
