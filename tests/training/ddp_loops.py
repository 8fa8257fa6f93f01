"""Training loops with the hook as people write them; `ddp_job` runs them under torchrun.

Momentum given to the hook, closures, a loss scaler, accumulation, uneven inputs, a sharded optimizer, and a state that
is older than the process group.
"""

from __future__ import annotations

import os
from functools import partial

import torch
import torch.distributed as dist
from ddp_mistakes import refused
from ddp_run import LARGE, OVERFLOW, SGD, SMALL, STEPS, Run, straight
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook

ALL = {"algorithm": "topka", "density": 1.0, "dense_steps": 0}
EXACT = {"density": 961 / 19226, "selector": "exact"}  # 5 %: the same entries in whatever order parameters stand
TOP = EXACT | {"algorithm": "topka", "dense_steps": 0}
CHECKED = {"density": 0.05, "check_every": 1}


def whole(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Give the state the optimizer itself."""
    return optimizer


# By name the optimizers that the hook takes over, and the options of a state at 5 %
SGDS = {
    "momentum": partial(SGD, weight_decay=0.02),
    "nesterov": partial(SGD, weight_decay=0.02, nesterov=True, fused=True),
}
ADAMW = partial(torch.optim.AdamW, lr=0.01, eps=1e-4, weight_decay=0.1)
TAKEN = {name: (make, TOP) for name, make in SGDS.items()} | {"adamw": (ADAMW, {"density": 0.05, "dense_steps": 1})}


def taken(name: str, **how) -> Run:
    """A run at 5 % whose state is given the optimizer of that name."""
    make, options = TAKEN[name]
    return Run(**{"options": options, "bucket_cap_mb": LARGE, "make": make, "give": whole} | how)


def trained(run: Run, skip: int = -1, **step) -> dict:
    for number in range(STEPS):
        if number != skip:
            run.step(number, **step)
            run.saw.setdefault("scales", []).append(run.scaler.get_scale() if run.scaler is not None else 1.0)
    return run.save()


def scaled(name: str | None) -> dict:
    """With a loss scale that changes, and one step in which one rank overflows."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    return trained(Run(CHECKED, scaler=scaler) if name is None else taken(name, scaler=scaler))


def skipped(name: str | None) -> dict:
    """Without a scaler, and without that step."""
    return trained(Run(CHECKED) if name is None else taken(name), skip=OVERFLOW)


def uneven(run: Run) -> dict:
    """Ranks have 4, 5 and 6 batches; the step after that is everybody's again.

    DDP leaves the division to its hook, whatever ``divide_by_initial_world_size`` is.
    """
    with run.model.join(divide_by_initial_world_size=run.options is not ALL):
        for number in range(4 + dist.get_rank()):
            run.step(number)
    run.saw["joined"] = torch.cat([p.detach().flatten() for p in run.net.parameters()])
    run.step(10)
    return run.save()


def flushed(name: str) -> dict:
    """What is owed moves the weights once, without momentum and decay."""
    run = taken(name)
    for number in range(STEPS):
        run.step(number)
    before = [p.detach().clone() for p in run.net.parameters()]
    run.state.flush()
    rate = run.optimizer.param_groups[0]["lr"]
    moved = [old - rate * p.grad for old, p in zip(before, run.net.parameters(), strict=True)]
    run.saw["expected"] = torch.cat([p.flatten() for p in moved])
    run.optimizer.step()
    return run.save()


def failed() -> dict:
    """A backward pass that fails once the first bucket is on its way; DDP is made anew then."""
    run = Run(CHECKED, make=partial(SGD, momentum=0.0))
    for number in range(3):
        run.step(number)

    def fail(gradient: torch.Tensor) -> None:
        raise ArithmeticError("the gradient")

    handle = run.net[0].weight.register_hook(fail)
    error = refused(lambda: run.model(torch.ones(2, 1, 8, 8)).sum().backward())
    handle.remove()
    run.wrap(bucket_cap_mb=SMALL)
    return trained(run) | {"error": error}


def zero(make: partial, options: dict) -> dict:
    """With torch's optimizer that is sharded over the ranks."""
    make = partial(ZeroRedundancyOptimizer, optimizer_class=make.func, **make.keywords)
    return straight(options, bucket_cap_mb=LARGE, make=make, give=lambda optimizer: optimizer.optim)


# States that are older than the process group


BEFORE: dict = {}


def before_the_group() -> None:
    """Make states, and find the mistake of one rank, while there is no process group."""
    rank, net = int(os.environ["RANK"]), torch.nn.Linear(3, 2)
    differing = SparseState(net.named_parameters(), density=0.1 + 0.01 * rank)
    BEFORE["late"] = {name: taken(name) for name in TAKEN}
    BEFORE["differing"] = net, differing
    BEFORE["said"] = {
        "comm": refused(lambda: differing.comm),
        "step": refused(lambda: sparse_hook(differing, None)),
        "load": refused(lambda: differing.load_state_dict(differing.state_dict())),
        "owed": {name: left.tolist() for name, left in differing.residuals().items()},
    }
    if rank == 1:
        BEFORE["said"]["mistake"] = refused(lambda: SparseState(net.named_parameters(), density=1.5))


def late(name: str) -> dict:
    run = BEFORE["late"][name]
    run.wrap(bucket_cap_mb=LARGE)
    return trained(run, closure=True)


def late_mistakes() -> dict:
    net, state = BEFORE["differing"]
    model = DistributedDataParallel(net)
    model.register_comm_hook(state, sparse_hook)
    return BEFORE["said"] | {"differ": refused(lambda: model(torch.ones(5, 3)).sum().backward())}


LOOPS = {"failed": failed, "late mistakes": late_mistakes}
for name, (make, options) in TAKEN.items():
    LOOPS |= {
        f"{name}-plain": partial(straight, None, make=make),
        f"{name}-all": partial(straight, ALL, make=make, give=whole),
        f"{name}-sparse": lambda name=name: trained(taken(name)),
        f"{name}-late": partial(late, name),
        f"{name}-zero": partial(zero, make, options),
    }
for name in (None, "nesterov", "adamw"):
    LOOPS |= {f"{name or 'local'}-{how.__name__}": partial(how, name) for how in (scaled, skipped)}
SEVERAL = {"gradient_as_bucket_view": True}
LOOPS |= {
    "nesterov-flushed": partial(flushed, "nesterov"),
    "accumulated-plain": lambda: trained(Run(None, **SEVERAL), passes=2),
    "accumulated-all": lambda: trained(Run(ALL, **SEVERAL), passes=2),
    "accumulated-sparse": lambda: trained(Run(CHECKED, **SEVERAL), passes=2),
    "uneven-plain": lambda: uneven(Run(None)),
    "uneven-all": lambda: uneven(Run(ALL)),
    "uneven-momentum": lambda: uneven(taken("momentum", make=SGD)),
    "uneven-sparse": lambda: uneven(Run(CHECKED, make=partial(SGD, momentum=0.0))),
}
