"""Let an optimizer of torch step along gradients that already have the momentum which SGD would apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

LAST = "last_mean"  # the key, in the optimizer's state of a parameter, of the gradient of the step before, for Nesterov
DECAY = "decay_momentum"  # the key, in the optimizer's state of a parameter, of the momentum of its weight decay


@contextmanager
def along_gradients(optimizer: Optimizer) -> Iterator[None]:
    """Let ``optimizer`` step without weight decay and, for torch's SGD, momentum, whose buffers stay as they are."""
    off = {"weight_decay": 0, **({"momentum": 0} if isinstance(optimizer, SGD) else {})}
    saved = [{option: group[option] for option in off if option in group} for group in optimizer.param_groups]
    try:
        for group, options in zip(optimizer.param_groups, saved, strict=True):
            # Other optimizers may lack these options: only those that a group has are changed
            group.update({option: off[option] for option in options})
        yield
    finally:
        for group, options in zip(optimizer.param_groups, saved, strict=True):
            group.update(options)


@contextmanager
def without_momentum(
    optimizer: Optimizer, momentum: float, applied: Callable[[Tensor], float], look_ahead: bool
) -> Iterator[None]:
    """Let ``optimizer`` step along its gradients in this context, without momentum and weight decay.

    What is left to do for them is done at the beginning: the momentum of gradients that are sparse tensors, of which
    nothing is late; Nesterov's look ahead; and the decay of the weights.

    Args:
        optimizer: torch's SGD, or one that derives from it.
        momentum: what was taken over from it.
        applied: returns the momentum that is in the gradient of a parameter.
        look_ahead: Nesterov's look ahead, if any, is left to do.

    Raises:
        ValueError: somebody has changed the optimizer's momentum, or its kind.
    """
    first = optimizer.param_groups[0]
    # A change by a scheduler would have no effect on what error feedback applies: it is an error
    fixed = {"momentum": momentum, "dampening": 0} | ({} if look_ahead else {"nesterov": first["nesterov"]})
    for group in optimizer.param_groups:
        for option, value in fixed.items():
            if group[option] != value:
                raise ValueError(
                    f"{option} must stay {value}, as the error feedback has taken momentum over, got {group[option]} "
                    "in the optimizer; make the optimizer anew, or use momentum='local'"
                )
    decays = [group["weight_decay"] for group in optimizer.param_groups]  # before they are switched off
    with along_gradients(optimizer):
        _push_sparse(optimizer, momentum)
        if look_ahead:
            _look_ahead(optimizer, applied)
        # As in torch, the decay goes by the weights before the step
        _decay_weights(optimizer, momentum, decays)
        yield


@torch.no_grad()
def _push_sparse(optimizer: Optimizer, momentum: float) -> None:
    """Apply SGD's momentum to gradients that are sparse tensors, as torch does; they are in no residual."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if momentum else ():
            if parameter.grad is None or not parameter.grad.is_sparse:
                continue
            state, gradient = optimizer.state[parameter], parameter.grad
            before = state.get("momentum_buffer")
            # As in torch, the first velocity is the gradient itself
            velocity = gradient.clone() if before is None else (momentum * before + gradient).coalesce()
            state["momentum_buffer"] = velocity
            # The optimizer steps along .grad without momentum: it must be the whole update
            parameter.grad = gradient.add(velocity, alpha=momentum) if group["nesterov"] else velocity.clone()


@torch.no_grad()
def _look_ahead(optimizer: Optimizer, applied: Callable[[Tensor], float]) -> None:
    """Turn the gradients, which include the momentum ``applied`` to each parameter's, into Nesterov's.

    Where dense SGD has the velocity ``u = g + m u_before``, Nesterov's update is ``g + m u = (1 + m) u - m u_before``.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["nesterov"] else ():
            if parameter.grad is not None and not parameter.grad.is_sparse:
                # The gradient as it arrives is u: its momentum was applied before the selection
                state, velocity = optimizer.state[parameter], parameter.grad.clone()
                momentum = applied(parameter)
                parameter.grad.mul_(1 + momentum)
                if LAST in state:  # not in the first step
                    parameter.grad.sub_(state[LAST], alpha=momentum)
                state[LAST] = velocity


@torch.no_grad()
def _decay_weights(optimizer: Optimizer, momentum: float, decays: list[float]) -> None:
    """Let weights decay as SGD does, by ``decays`` of the groups; their momentum needs no reduction."""
    for group, weight_decay in zip(optimizer.param_groups, decays, strict=True):
        for parameter in group["params"] if weight_decay else ():
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise ValueError(
                    f"weight_decay must be 0 where gradients are sparse tensors, as in torch, got {weight_decay}; put "
                    f"the parameter of shape {tuple(parameter.shape)} into a group with weight_decay=0"
                )
            state = optimizer.state[parameter]
            if DECAY not in state:
                state[DECAY] = torch.zeros_like(parameter)
            rate, now = float(group["lr"]), weight_decay * parameter
            # v = m v + decay w, and then w -= rate v, or with Nesterov w -= rate (decay w + m v)
            state[DECAY].mul_(momentum).add_(now)
            parameter.add_(now.add_(state[DECAY], alpha=momentum) if group["nesterov"] else state[DECAY], alpha=-rate)
