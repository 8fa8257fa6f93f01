"""Adam for entries that arrive late.

An arriving sum is added to the rest of earlier ones. After a wait of d steps the part ``1 - s`` of the total moves the
weight, divided by the root of the second moment, and the part ``s = beta1^(d^2)`` stays for the next arrival. With d =
1 this is Adam's first moment; after a long wait, which has averaged its sum, an entry moves at once. For entries every
d steps training is stable up to ``lr h = (2 / d) (1 + s) / (1 - s)``, h the curvature over the root: for d = 1 Adam's
own limit.

The second moment travels with the entries, see `SecondMoment`, or is estimated from arrivals, each taken as d equal
gradients. Waiting times follow from the results, without a message. An entry has arrived if the result has its index,
also with a value of 0; all have in a dense result or at density 1, where training by arrival equals torch's Adam, to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, NAdam, Optimizer, RMSprop

from sparse_mpi.checks import check_range
from sparse_mpi.reduction.form import EARLIER
from sparse_mpi.training.own_step import steps_as

TRAVELLING = "second-moment"  # the mode in which second moments of the ranks' own gradients travel
State = dict[str, Any]  # an optimizer's state of a parameter, or the options of a group
# By mode, the optimizers whose steps it can take
ADAMS: dict[str, tuple[type[Optimizer], ...]] = {"arrival": (Adam, AdamW), TRAVELLING: (Adam, AdamW, NAdam, RMSprop)}
ARRIVED = "arrived"  # the key, in the optimizer's state of a parameter, of the step in which each entry last arrived


@torch.no_grad()
def begin(optimizer: Optimizer, members: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Make the state of all ``members`` that have a gradient, as a step along zeros does."""
    groups, aside = {p: group for group in optimizer.param_groups for p in group["params"]}, set_aside(members)
    for parameter, _ in aside:
        if "betas" in (group := groups.get(parameter, {})):
            begin_state(parameter, optimizer.state[parameter], group)
            optimizer.state[parameter]["step"] += 1
    return aside


def set_aside(parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    aside = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter, _ in aside:
        parameter.grad = None
    return aside


def give_back(aside: Iterable[tuple[Tensor, Tensor]]) -> None:
    for parameter, gradient in aside:
        if parameter.grad is None:
            parameter.grad = gradient


def without_moments(state: Mapping[str, Any], mode: str) -> dict[str, Any] | None:
    """Return an optimizer's ``state`` without moments that are useless in a ``mode``; None: all are useful.

    Second moments of RMSprop are useless where second moments travel.

    Raises:
        ValueError: a parameter has a number of steps and no moments.
    """
    if any({*one} == {"step"} for one in state["state"].values()):
        raise ValueError(f"state must have moments beside 'step', got 'step' alone; {EARLIER}")
    useful = {"exp_avg_sq"} if mode == TRAVELLING else {"exp_avg_sq", "square_avg"}
    kept = {key: one if "step" not in one or one.keys() & useful else {} for key, one in state["state"].items()}
    return {**state, "state": kept} if any(one and not kept[key] for key, one in state["state"].items()) else None


def second_beta(group: Mapping[str, Any], least: float = 0.0) -> float:
    """Return the beta of a second moment; ``least`` is from `memory`, for one that travels."""
    return max(float(group["betas"][1] if "betas" in group else group["alpha"]), least)


def memory(share: float) -> float:
    """Return the least beta of second moments that outlast waits, where a ``share`` of the entries arrives."""
    return max(0.0, min(0.999, 1 - share / 21)) if share < 1 else 0.0


def check_adam(optimizer: Optimizer, mode: str = "arrival") -> None:
    if not steps_as(optimizer, *ADAMS[mode]):
        able = ", ".join(kind.__name__ for kind in ADAMS[mode])
        raise TypeError(
            f"momentum must not be {mode!r} with {type(optimizer).__name__}, whose step is none of torch's "
            f"{able}; use momentum='local', or 'global' with SGD"
        )
    for option in ("momentum", "centered"):  # options of RMSprop
        if given := [group[option] for group in optimizer.param_groups if group.get(option)]:
            raise ValueError(f"{option} must be 0 with momentum={mode!r}, got {given[0]}; use momentum='local'")
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError(f"amsgrad must be False with momentum={mode!r}, got True; use momentum='local'")
    for group in optimizer.param_groups:  # a schedule may have changed them
        for beta in group["betas"] if "betas" in group else [group["alpha"]]:
            check_range("betas" if "betas" in group else "alpha", float(beta), "[0, 1)")
    coupled = [group for group in optimizer.param_groups if not decoupled(optimizer, group)]
    decays = [group["weight_decay"] for group in coupled if group["weight_decay"]]
    if mode == TRAVELLING and decays:
        raise ValueError(
            f"weight_decay must be 0 with momentum={TRAVELLING!r} where it is part of the gradient, got {decays[0]}; "
            "use AdamW, or momentum='arrival' with Adam"
        )


def decoupled(optimizer: Optimizer, group: State) -> bool:
    return isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay", False))


def begin_state(parameter: Any, state: State, group: State) -> None:
    """Complete the state of a parameter before its first step here."""
    if "step" not in state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if "momentum_decay" in group:
            state["mu_product"] = torch.tensor(1.0)
    if ARRIVED not in state:  # new, or from a checkpoint of torch's own Adam
        state[ARRIVED] = torch.full_like(parameter, int(state["step"]), dtype=torch.int32)
