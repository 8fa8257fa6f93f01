"""Check what a `DiLoCo` is made of, before the first message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from sparse_mpi.checks import check_instance, check_range, check_whole
from sparse_mpi.feedback import Feedback
from sparse_mpi.training.distributed_optimizer import is_distributed
from sparse_mpi.training.optimizer_rule import momentum_rule


def check_schedule(sync_every: Any, fragments: Any, fragment_sync_delay: Any, fragment_update_alpha: Any) -> None:
    check_whole("sync_every", sync_every, 1, "step")
    check_whole("fragments", fragments, 1)
    check_whole("fragment_sync_delay", fragment_sync_delay, 0, "steps")
    if sync_every % fragments:
        above = sync_every + fragments - sync_every % fragments
        raise ValueError(
            f"sync_every must be a multiple of the {fragments} fragments, which take turns, got {sync_every}; take "
            f"{above}"
        )
    if fragment_sync_delay >= sync_every // fragments:
        raise ValueError(
            f"fragment_sync_delay must be below the {sync_every // fragments} steps between two fragments (sync_every "
            f"/ fragments), got {fragment_sync_delay}; a fragment must have arrived before the next one leaves"
        )
    if fragment_update_alpha is not None:
        usual = "0 takes the global parameters, None keeps the steps of the delay"
        check_range("fragment_update_alpha", fragment_update_alpha, "[0, 1]", usual)


def check_optimizers(inner: Any, outer: Any, feedback: str | Feedback) -> None:
    for name, optimizer in (("inner_optimizer", inner), ("outer_optimizer", outer)):
        check_instance(name, optimizer, Optimizer)
        if is_distributed(optimizer):
            raise TypeError(
                f"{name} must not reduce gradients itself, got a DistributedOptimizer; give the plain optimizer: "
                "only outer gradients are reduced, every sync_every steps"
            )
    if inner is outer:
        raise ValueError("outer_optimizer must be another one than inner_optimizer, got the same twice")
    # Raises where both the outer optimizer and the feedback rule have a momentum
    momentum_rule(outer, feedback, "local")


def trained_parameters(model: nn.Module, inner: Optimizer, outer: Optimizer, fragments: int) -> dict[str, Tensor]:
    """Return the parameters of ``model`` that are trained, by name; TypeError or ValueError if they do not fit."""
    check_instance("model", model, nn.Module)
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise TypeError(
            "model must not reduce gradients itself, got a DistributedDataParallel; give the module that it wraps"
        )
    # Frozen parameters are equal on all ranks, and stay so
    named = {p: name for name, p in model.named_parameters() if p.requires_grad}
    if len(named) < fragments:
        raise ValueError(
            f"fragments must be at most the {len(named)} parameters of the model that need a gradient, got {fragments}"
        )
    for where, optimizer in (("inner_optimizer", inner), ("outer_optimizer", outer)):
        own = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        if missing := [name for p, name in named.items() if p not in own]:
            raise ValueError(
                f"{where} must have all {len(named)} parameters of the model that need a gradient, got all but "
                f"{len(missing)}, the first of them {missing[0]!r}; make it with model.parameters()"
            )
        if strange := len(own - set(named)):
            raise ValueError(
                f"{where} must have parameters of the model alone, got {strange} others, which no rank would share; "
                "give the model that has them"
            )
    kinds = {(p.dtype, p.device): name for p, name in reversed(named.items())}  # the first name of each kind prevails
    if len(kinds) > 1:
        listed = ", ".join(f"{name!r} {dtype} on {device}" for (dtype, device), name in kinds.items())
        raise ValueError(f"model must have parameters of one dtype on one device, got {listed}; use autocast")
    return {name: p for p, name in named.items()}


def cut(parameters: dict[str, Tensor], fragments: int) -> list[dict[str, Tensor]]:
    """Cut parameters into so many fragments of neighbours, of about equal sizes; none is empty."""
    named = list(parameters.items())
    ends = torch.tensor([p.numel() for _, p in named]).cumsum(0)  # elements up to and with each parameter
    cuts = [0]
    for number in range(1, fragments):
        # Cut where the elements come closest to equal shares, but leave a parameter to each fragment
        nearest = int((ends - ends[-1] * number / fragments).abs().argmin()) + 1
        left = fragments - number  # fragments that each need a parameter yet
        cuts.append(min(max(nearest, cuts[-1] + 1), len(named) - left))
    return [dict(named[start:stop]) for start, stop in zip(cuts, [*cuts[1:], len(named)], strict=True)]
