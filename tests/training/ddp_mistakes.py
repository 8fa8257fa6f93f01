"""Mistakes with the hook of DistributedDataParallel, and what their errors say; `ddp_job` makes them."""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.ddp import SparseState, sparse_hook


def refused(call) -> str:
    """What the error says that ``call`` must raise."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def mistakes(run_of: type, options: dict, moments: dict) -> dict:
    """What the errors say, by mistake; ``run_of`` makes a run, of ``moments`` one whose second moments travel."""
    pairs = list(run_of(None).net.named_parameters())
    rank = dist.get_rank()
    saved = run_of(options).state.state_dict()

    def of_another_model():
        run = run_of(options)
        run.state._names.popitem()
        run.step(0)

    def of_another_order():
        net = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("ba" if rank == 1 else "ab")})
        model = DistributedDataParallel(net)
        model.register_comm_hook(SparseState(net.named_parameters()), sparse_hook)
        net.forward = lambda x: net["b"](net["a"](x))
        model(torch.ones(2, 3)).sum().backward()

    def step_of_adamw(how, **more):
        run = run_of({}, **moments | more)
        how(run.optimizer, run.model(torch.ones(2, 1, 8, 8)).sum())

    def scaled(optimizer, loss):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    def not_finite():
        run = run_of({"nonfinite": "raise"})
        run.model(torch.ones(2, 1, 8, 8) * (torch.nan if rank == 1 else 1.0)).sum().backward()
        run.optimizer.step()

    adamw = torch.optim.AdamW([p for _, p in pairs])
    sgd = torch.optim.SGD([p for _, p in pairs], lr=0.1, momentum=0.9)
    zero = ZeroRedundancyOptimizer([p for _, p in pairs], optimizer_class=torch.optim.SGD, lr=0.1)
    return {
        "of another model": refused(of_another_model),
        "of another order": refused(of_another_order),
        "complex": refused(lambda: SparseState(torch.nn.Linear(4, 2, dtype=torch.complex64).named_parameters())),
        "one scaler": refused(lambda: SparseState(pairs, scaler=torch.amp.GradScaler("cpu") if rank == 1 else None)),
        "one optimizer": refused(lambda: SparseState(pairs, optimizer=sgd if rank == 1 else None)),
        "zero": refused(lambda: SparseState(pairs, optimizer=zero)),
        "nothing can travel": refused(
            lambda: SparseState(pairs, optimizer=adamw, algorithm="oktopk", momentum="second-moment")
        ),
        "copy": refused(lambda: sparse_hook(copy.deepcopy(SparseState(pairs, optimizer=sgd)), None)),
        "scaler": refused(lambda: step_of_adamw(scaled)),
        "fused scaler": refused(lambda: step_of_adamw(scaled, make=partial(torch.optim.AdamW, fused=True))),
        "local scaler": refused(lambda: step_of_adamw(scaled, make=torch.optim.Adagrad)),
        "not finite": refused(not_finite),
        "state": refused(lambda: SparseState(pairs).load_state_dict({})),
        "names": refused(lambda: SparseState(pairs).load_state_dict(saved | {"owed": {"0.weights": {}}})),
    }
