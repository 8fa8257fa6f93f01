"""Let a torch optimizer step along gradients that have SGD's momentum already."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from sparse_mpi.training.adam_steps import State
from sparse_mpi.training.optimizer_rule import Rule
from sparse_mpi.training.parameters import local

LAST = "last_mean"  # the key, in the optimizer's state of a parameter, of the gradient of the step before, for Nesterov
DECAY = "decay_momentum"  # the key, in the optimizer's state of a parameter, of the momentum of its weight decay


@contextmanager
def along_gradients(optimizer: Optimizer) -> Iterator[None]:
    """Let ``optimizer`` step without weight decay and, for torch's SGD, momentum; its buffers stay."""
    off = ("weight_decay", "momentum") if isinstance(optimizer, SGD) else ("weight_decay",)
    saved = [{option: group[option] for option in off if option in group} for group in optimizer.param_groups]
    try:
        for group, options in zip(optimizer.param_groups, saved, strict=True):
            group.update(dict.fromkeys(options, 0))
        yield
    finally:
        for group, options in zip(optimizer.param_groups, saved, strict=True):
            group.update(options)


@contextmanager
def without_momentum(optimizer: Optimizer, rule: Rule, late: Container[Tensor]) -> Iterator[None]:
    """Let ``optimizer`` step along its gradients in this context, without momentum and weight decay.

    The rest is done at the beginning: momentum of sparse tensors, where nothing is late; Nesterov's look ahead; weight
    decay. Within `torch.no_grad`. ``rule`` has applied the momentum; parameters in ``late`` had a sparse sum.

    Raises:
        ValueError: the optimizer's momentum has been changed, or its kind.
    """
    momentum, look_ahead = rule.momentum or 0.0, rule.mode != "corrected"  # that one has looked ahead
    # Error feedback would ignore a scheduler's change of momentum: it is an error
    first = optimizer.param_groups[0]
    fixed = {"momentum": momentum, "dampening": 0} | ({} if look_ahead else {"nesterov": first["nesterov"]})
    for group in optimizer.param_groups:
        for option, value in fixed.items():
            if group[option] != value:
                raise ValueError(
                    f"{option} must stay {value}, as the error feedback has taken momentum over, got {group[option]} "
                    "in the optimizer; make the optimizer anew, or use momentum='local'; OneCycleLR and CyclicLR leave "
                    "it alone if their cycle_momentum is False"
                )
    decays = [group["weight_decay"] for group in optimizer.param_groups]  # decays, which are switched off below
    with along_gradients(optimizer):
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            given = [p for p in group["params"] if p.grad is not None]
            rows, state = [p for p in given if p.grad.is_sparse], optimizer.state
            if rows and decay:
                raise ValueError(
                    f"weight_decay must be 0 where gradients are sparse tensors, as in torch, got {decay}; put the "
                    f"parameter of shape {tuple(rows[0].shape)} into a group with weight_decay=0"
                )
            for parameter in rows if momentum else ():
                _push_rows(parameter, state[parameter], momentum, group["nesterov"])
            if group["nesterov"] and look_ahead:
                dense = [p for p in given if not p.grad.is_sparse]
                _look_ahead([p for p in dense if p in late], state, rule.late or 0.0)
                _look_ahead([p for p in dense if p not in late], state, momentum)
            if decay:  # torch decays by the weights before the step
                _decay(given, state, momentum, decay, group)
        yield


def _push_rows(parameter: Tensor, state: State, momentum: float, nesterov: bool) -> None:
    """Apply SGD's momentum to a sparse tensor, as torch does; it is in no residual."""
    gradient: Any = parameter.grad
    before = state.get("momentum_buffer")
    # As in torch, the first velocity is the gradient itself
    velocity = gradient.clone() if before is None else (momentum * before + gradient).coalesce()
    state["momentum_buffer"] = velocity
    # The optimizer steps along .grad without momentum: it must be the whole update
    parameter.grad = gradient.add(velocity, alpha=momentum) if nesterov else velocity.clone()


def _look_ahead(parameters: Sequence[Any], states: Mapping[Tensor, State], momentum: float) -> None:
    """Turn gradients that include the ``momentum`` into Nesterov's.

    With the velocity ``u = g + m u_before`` of dense SGD, Nesterov's update is ``g + m u = (1 + m) u - m u_before``.
    """
    for parameter in parameters:
        if LAST not in states[parameter]:  # first step
            states[parameter][LAST] = torch.zeros_like(parameter.grad)
    if parameters:
        # The gradient as it arrives is u: its momentum was applied before the selection
        velocities = [local(parameter.grad) for parameter in parameters]
        before = [local(states[parameter][LAST]) for parameter in parameters]
        updates = torch._foreach_mul(velocities, 1 + momentum)
        torch._foreach_sub_(updates, before, alpha=momentum)
        torch._foreach_copy_(before, velocities)
        torch._foreach_copy_(velocities, updates)


def _decay(
    parameters: Sequence[Tensor], states: Mapping[Tensor, State], momentum: float, decay: float, group: State
) -> None:
    """Let weights decay as SGD does, with momentum, without a reduction."""
    for parameter in parameters:
        if DECAY not in states[parameter]:
            states[parameter][DECAY] = torch.zeros_like(parameter)
    if parameters:
        weights = [local(parameter) for parameter in parameters]
        velocities, rate = [local(states[parameter][DECAY]) for parameter in parameters], float(group["lr"])
        now = torch._foreach_mul(weights, decay)
        # v = m v + decay w, and then w -= rate v, or with Nesterov w -= rate (decay w + m v)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, now)
        if group["nesterov"]:
            torch._foreach_add_(now, velocities, alpha=momentum)
        torch._foreach_add_(weights, now if group["nesterov"] else velocities, alpha=-rate)
