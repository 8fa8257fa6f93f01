"""Adam for entries that arrive late.

An arriving sum is added to the rest of earlier ones. After a wait of d steps the part ``1 - s`` of the total moves the
weight, divided by the root of the second moment, and the part ``s = beta1^(d^2)`` stays for the next arrival. With d =
1 this is Adam's first moment; after a long wait an entry moves at once, because the wait has averaged its sum. For
entries every d steps training is stable up to ``lr h = (2 / d) (1 + s) / (1 - s)``, h the curvature over the root: for
d = 1 Adam's own limit.

The second moment travels with the entries, see `SecondMoment`, or is estimated from arrivals, each taken as d equal
gradients. Waiting times follow from the results, equal on all ranks, so no message is needed. An entry has arrived if
the result has its index, also with a value of 0; all have if the result is dense or density is 1. So at density 1
training by arrival equals torch's Adam, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, NAdam, Optimizer, RMSprop

from sparse_mpi.checks import check_range, present
from sparse_mpi.reduction.form import EARLIER
from sparse_mpi.training.own_step import steps_as
from sparse_mpi.training.parameters import local

TRAVELLING = "second-moment"  # the mode in which second moments of the ranks' own gradients travel
State = dict[str, Any]  # an optimizer's state of a parameter, or the options of a group
Places = tuple[Any, ...]  # an index of a tensor
EVERYWHERE: Places = (...,)
# By mode, the optimizers whose steps it can take
ADAMS: dict[str, tuple[type[Optimizer], ...]] = {"arrival": (Adam, AdamW), TRAVELLING: (Adam, AdamW, NAdam, RMSprop)}
ARRIVED = "arrived"  # the key, in the optimizer's state of a parameter, of the step in which each entry last arrived


class Came(NamedTuple):
    """The arrived entries of the gradient of a parameter, or of this process's shard of it."""

    mask: Tensor | None  # where; None: everywhere
    second: Tensor | None = None  # the second moment of the mean gradient, 0 where no entry has arrived
    steps: int = 0  # the number of gradients in it


@torch.no_grad()
def move(optimizer: Optimizer, mode: str, came: Mapping[Tensor, Came]) -> list[tuple[Tensor, Tensor]]:
    """Move the weights whose gradients have arrived, as far as Adam would have since their last arrival.

    Returns these parameters and their gradients. ``.grad`` becomes None, so that the optimizer's own step skips them.

    Raises:
        TypeError, ValueError, RuntimeError: see `check_adam`; or a gradient is a sparse tensor.
    """
    check_adam(optimizer, mode)  # options may have changed
    # As in torch, other parameters keep their weights, their moments and their number of steps
    with_gradient = [(p, group) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    moved = [(p, group) for p, group in with_gradient if p in came]
    for parameter, _ in with_gradient:
        if parameter.grad.is_sparse:
            raise RuntimeError(
                f"{type(optimizer).__name__} must have dense gradients, got a sparse tensor of shape "
                f"{tuple(parameter.shape)}; make a DistributedOptimizer of torch.optim.SparseAdam for that one"
            )
    places = _places({p: came[p].mask for p, _ in moved if came[p].mask is not None})
    for parameter, group in moved:
        decoupled, at = _decoupled(optimizer, group), places.get(parameter, EVERYWHERE)
        # Decay all weights where that is decoupled from the gradient; else it is part of each gradient of the wait
        if decoupled and group["weight_decay"]:
            local(parameter).mul_(1 - float(group["lr"]) * group["weight_decay"])
        given, decay = came[parameter], 0 if decoupled else group["weight_decay"]
        if mode == TRAVELLING:
            present(given.second, "second moments travel with the entries of a step")
        _move(parameter, at, given, optimizer.state[parameter], group, decay)
    return set_aside(parameter for parameter, _ in moved)


def begin(optimizer: Optimizer, members: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Make the state of all ``members`` that have a gradient, as a step along zeros does; see `move`."""
    groups, aside = {p: group for group in optimizer.param_groups for p in group["params"]}, set_aside(members)
    for parameter, _ in aside:
        if "betas" in (group := groups.get(parameter, {})):
            _begin(parameter, optimizer.state[parameter], group)
    return aside


def set_aside(parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return parameters and their gradients, which become None, until `give_back`."""
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
    for option in ("momentum", "centered"):  # of RMSprop
        if given := [group[option] for group in optimizer.param_groups if group.get(option)]:
            raise ValueError(f"{option} must be 0 with momentum={mode!r}, got {given[0]}; use momentum='local'")
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError(f"amsgrad must be False with momentum={mode!r}, got True; use momentum='local'")
    for group in optimizer.param_groups:  # which a schedule may have changed
        for beta in group["betas"] if "betas" in group else [group["alpha"]]:
            check_range("betas" if "betas" in group else "alpha", float(beta), "[0, 1)")
    coupled = [group for group in optimizer.param_groups if not _decoupled(optimizer, group)]
    decays = [group["weight_decay"] for group in coupled if group["weight_decay"]]
    if mode == TRAVELLING and decays:
        raise ValueError(
            f"weight_decay must be 0 with momentum={TRAVELLING!r} where it is part of the gradient, got {decays[0]}; "
            "use AdamW, or momentum='arrival' with Adam"
        )


def _decoupled(optimizer: Optimizer, group: State) -> bool:
    return isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay", False))


def _places(masks: Mapping[Tensor, Any]) -> dict[Tensor, Places]:
    """Return where each of ``masks`` is True, as `torch.nonzero`; the host waits for a device once."""
    # A number has no dimension to index: its mask is the index
    found: dict[Tensor, Places] = {p: (mask,) for p, mask in masks.items() if not mask.dim()}
    rest = {p: mask for p, mask in masks.items() if mask.dim()}
    if not any(mask.is_cuda for mask in rest.values()):
        return found | {p: mask.nonzero(as_tuple=True) for p, mask in rest.items()}
    counts = torch.stack([mask.count_nonzero() for mask in rest.values()]).tolist()
    for (p, mask), count in zip(rest.items(), counts, strict=True):
        # The i-th position is the first one up to which i are True
        positions = torch.searchsorted(mask.flatten().cumsum(0), torch.arange(1, count + 1, device=mask.device))
        found[p] = torch.unravel_index(positions, mask.shape)
    return found


def _move(parameter: Any, at: Places, came: Came, state: State, group: State, decay: float) -> None:
    """Move the weights ``at`` the arrived entries, with a ``decay`` that is part of each gradient of a wait.

    The state is torch's own: the rest for the next arrival is ``beta1 / (1 - beta1)`` times the first moment.
    """
    weight, total = local(parameter), local(parameter.grad)[at].double()
    if group["maximize"]:
        total = -total
    if "alpha" in group:  # RMSprop has no first moment, and its second one begins at 0
        moment = _travelled(present(came.second, "RMSprop goes by no arrival")[at], total)
        moment *= 1 - second_beta(group) ** came.steps
        moved = total
    else:
        _begin(parameter, state, group)
        step, (beta1, beta2) = int(state["step"]), map(float, group["betas"])
        average, square, last = local(state["exp_avg"]), local(state["exp_avg_sq"]), local(state[ARRIVED])
        waited = step - last[at].double()
        if decay:
            total += decay * waited * weight[at]
        if came.second is None:  # the second moment of d equal gradients
            mean = total / waited
            moment = (mean**2 + (square[at].double() - mean**2) * beta2**waited) / (1 - beta2**step)
        else:
            moment = _travelled(came.second[at], total)
        # Filter: the rest of earlier arrivals comes along, and a part stays for later ones
        power = waited**2
        stays = beta1**power
        gathered = total + beta1 / (1 - beta1) * average[at].double()
        moved = (1 - stays) * gathered
        if "momentum_decay" in group:  # NAdam, whose betas rise to beta1
            now, then = (beta1 * (1 - 0.5 * 0.96 ** (at * group["momentum_decay"])) for at in (step, step + 1))
            state["mu_product"] *= now
            product = float(state["mu_product"])
            moved = (1 - now**power) * total / (1 - product) + then**power * moved / (1 - product * then)
        else:
            moved /= 1 - stays * beta1 ** last[at].double()  # all of it, where nothing has come before
        # In torch's measure: moments that begin at 0
        average[at] = ((1 - beta1) * beta1 ** (power - 1) * gathered).to(average.dtype)
        square[at] = (moment * (1 - beta2**step)).to(square.dtype)
        last[at] = step
    weight[at] -= (float(group["lr"]) * moved / (moment.sqrt() + group["eps"])).to(weight.dtype)


def _travelled(second: Tensor, total: Tensor) -> Tensor:
    """Return travelled second moments; where they are 0 (the caller has added to the ``total``), its square."""
    # So it moves as in Adam's first step
    return torch.where(second == 0, total**2, second.double())


def _begin(parameter: Any, state: State, group: State) -> None:
    if "step" not in state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if "momentum_decay" in group:
            state["mu_product"] = torch.tensor(1.0)
    if ARRIVED not in state:  # new, or from a checkpoint of torch's own Adam
        state[ARRIVED] = torch.full_like(parameter, int(state["step"]), dtype=torch.int32)
    state["step"] += 1
