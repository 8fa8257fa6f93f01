"""Check the arguments of a `DiLoCo`, before the first message."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from sparse_mpi.checks import check_instance, check_range, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks, tell
from sparse_mpi.training.distributed_optimizer import is_distributed
from sparse_mpi.training.named_gradients import Names


class Schedule(NamedTuple):
    """When fragments are synchronised, by the arguments of `DiLoCo`."""

    sync_every: int
    fragments: int
    fragment_sync_delay: int
    fragment_update_alpha: float | None

    @property
    def turn(self) -> int:
        return self.sync_every // self.fragments

    def check(self, parameters: int) -> None:
        """Raise TypeError or ValueError if an argument does not fit a model of so many ``parameters``."""
        every, fragments = self.sync_every, self.fragments
        check_whole("sync_every", every, 1, "step")
        check_whole("fragments", fragments, 1, remedy="each needs a parameter that needs a gradient", most=parameters)
        if every % fragments:
            above = every + fragments - every % fragments
            raise ValueError(f"sync_every must be a multiple of the {fragments} fragments, got {every}; take {above}")
        arrived = "a fragment must have arrived before the next one leaves, after sync_every / fragments"
        check_whole("fragment_sync_delay", self.fragment_sync_delay, 0, "steps", arrived, most=self.turn - 1)
        if self.fragment_update_alpha is not None:
            usual = "0 takes the global parameters, None keeps the steps of the delay"
            check_range("fragment_update_alpha", self.fragment_update_alpha, "[0, 1]", usual)


def trained_parameters(model: nn.Module, inner: Optimizer, outer: Optimizer) -> dict[str, Tensor]:
    """Return the trained parameters of ``model``, by name; TypeError or ValueError if one does not fit."""
    check_instance("model", model, nn.Module)
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise TypeError("model must not reduce gradients itself, got a DistributedDataParallel; give its .module")
    # Frozen parameters are equal on all ranks, and stay so
    named = {p: name for name, p in model.named_parameters() if p.requires_grad}
    for where, optimizer in (("inner_optimizer", inner), ("outer_optimizer", outer)):
        check_instance(where, optimizer, Optimizer)
        if is_distributed(optimizer):
            raise TypeError(
                f"{where} must not reduce gradients itself, got a DistributedOptimizer; give the plain optimizer: "
                "only outer gradients are reduced, every sync_every steps"
            )
        own = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        missing, others = [name for p, name in named.items() if p not in own], len(own - set(named))
        if missing or others:
            raise ValueError(
                f"{where} must have all {len(named)} parameters of the model that need a gradient, and no others, got "
                f"{others} others and all but {missing[:3]}; make it with model.parameters(), or give the whole model"
            )
    if inner is outer:
        raise ValueError("outer_optimizer must be another one than inner_optimizer, got the same twice")
    if not any(p.numel() for p in named):
        raise ValueError("model must have a parameter with elements that needs a gradient, got none; is it frozen?")
    # The first name of each kind prevails
    kinds = {(p.dtype, p.device): name for p, name in reversed(named.items()) if p.numel()}
    if len(kinds) > 1:
        listed = ", ".join(f"{name!r} {dtype} on {device}" for (dtype, device), name in kinds.items())
        raise ValueError(f"model must have parameters of one dtype on one device, got {listed}; use autocast")
    return {name: p for p, name in named.items()}


def order_groups(optimizer: Optimizer, model: nn.Module, comm: Comm) -> None:
    """Put the parameters of each group into the first rank's order, by which states are saved. Collective.

    Raises:
        ValueError: ranks have other names in a group; raised on every rank.
    """
    known = {parameter: name for name, parameter in model.named_parameters()}
    names = [
        [known.get(p, f"frozen {number}") for number, p in enumerate(group["params"])]
        for group in optimizer.param_groups
    ]
    with same_on_all_ranks(comm) as say:
        say(optimizer=type(optimizer).__name__, groups=[sorted(some) for some in names])
    told = json.loads(tell(comm, json.dumps(names)))
    for group, own, order in zip(optimizer.param_groups, names, told, strict=True):
        for key in ("params", "param_names") if "param_names" in group else ("params",):
            group[key][:] = [group[key][own.index(name)] for name in order]


def cut(parameters: dict[str, Tensor], fragments: int) -> list[Names]:
    """Return the names of fragments of neighbours, of about equal sizes and none empty."""
    names = tuple(parameters)
    ends = torch.tensor([p.numel() for p in parameters.values()]).cumsum(0)  # elements up to and with each parameter
    cuts = [0]
    for left in range(fragments - 1, 0, -1):  # fragments that each need a parameter yet
        nearest = int((ends - ends[-1] * (fragments - left) / fragments).abs().argmin()) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(names) - left))
    return [names[start:stop] for start, stop in pairwise([*cuts, len(names)])]
