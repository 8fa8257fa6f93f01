"""Decide who applies the momentum of torch's SGD: the optimizer, or a feedback rule before entries are selected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.optim import SGD, Optimizer

from sparse_mpi.feedback import FEEDBACKS, Feedback, GlobalMomentum, MomentumCorrection

MODES = ("local", "global", "corrected")
DECAY = "decay_momentum"  # the key, in the optimizer's state of a parameter, of the momentum of its weight decay


def momentum_rule(optimizer: Optimizer, feedback: str | Feedback, momentum: str) -> str | Feedback:
    """Return the feedback rule to use: ``feedback``, or one that has taken the optimizer's momentum over.

    Raises:
        TypeError: ``optimizer`` is not torch's SGD, whose momentum could be taken over.
        ValueError: there is no such mode, momentum is asked for twice, or the optimizer's cannot be taken over.
    """
    if momentum not in MODES:
        raise ValueError(f"momentum must be one of {', '.join(MODES)}, got {momentum!r}")
    if momentum != "local":
        if feedback != "residual":
            raise ValueError(
                f"feedback must be 'residual' with momentum={momentum!r}, which makes the rule itself, got "
                f"{feedback!r}; use momentum='local', and an optimizer without momentum"
            )
        return _taken_over(optimizer, momentum)
    rule = FEEDBACKS[feedback]() if isinstance(feedback, str) and feedback in FEEDBACKS else feedback
    own = max((float(group.get("momentum", 0)) for group in optimizer.param_groups), default=0.0)
    if isinstance(rule, Feedback) and rule.momentum and own:
        raise ValueError(
            f"momentum must be given once, got {own} in the optimizer and {rule.momentum} in {rule!r}; make the "
            f"optimizer with momentum=0, or use feedback='residual' and momentum='global'"
        )
    return feedback


def _taken_over(optimizer: Optimizer, mode: str) -> GlobalMomentum | MomentumCorrection:
    """Return the rule that applies the momentum of ``optimizer`` from now on."""
    if not isinstance(optimizer, SGD):
        raise TypeError(
            f"momentum must be 'local' with {type(optimizer).__name__}, which has not the momentum of SGD, got "
            f"{mode!r}; leave it out, or use torch.optim.SGD"
        )
    groups = optimizer.param_groups
    for option, wanted in {"dampening": 0, "nesterov": False}.items() if mode == "global" else [("dampening", 0)]:
        given = [group[option] for group in groups if group[option] != wanted]
        if given:
            raise ValueError(f"{option} must be {wanted} with momentum={mode!r}, got {given[0]}; use momentum='local'")
    for option in ("momentum", "nesterov"):
        given = sorted({group[option] for group in groups})
        if len(given) > 1:
            raise ValueError(
                f"{option} must be the same in all parameter groups with momentum={mode!r}, got "
                f"{', '.join(map(str, given))}; use momentum='local'"
            )
    if mode == "global":
        return GlobalMomentum(groups[0]["momentum"])
    return MomentumCorrection(groups[0]["momentum"], nesterov=groups[0]["nesterov"])


@contextmanager
def without_momentum(optimizer: Optimizer, momentum: float | None) -> Iterator[Callable[[], None]]:
    """Let ``optimizer`` step without momentum and weight decay in this context, unless ``momentum`` is None.

    Yields:
        What lets the weights decay as SGD with this momentum does; to be called when the gradients are there.

    Raises:
        ValueError: somebody has changed the optimizer's momentum, which was taken over, from ``momentum``.
    """
    if momentum is None:
        yield lambda: None
        return
    saved = [{option: group[option] for option in ("momentum", "weight_decay")} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if group["momentum"] != momentum:
            raise ValueError(
                f"momentum must stay {momentum}, which the error feedback has taken over, got {group['momentum']} in "
                "the optimizer; make the optimizer anew, or use momentum='local'"
            )
    try:
        for group in optimizer.param_groups:
            group.update(momentum=0, weight_decay=0)
        yield lambda: _decay_weights(optimizer, momentum, [options["weight_decay"] for options in saved])
    finally:
        for group, options in zip(optimizer.param_groups, saved, strict=True):
            group.update(options)


@torch.no_grad()
def _decay_weights(optimizer: Optimizer, momentum: float, decays: list[float]) -> None:
    """Let weights decay by ``decays``, one for each group, as SGD does: a decay is part of the gradient there.

    All ranks have the same weights, so that the momentum of the decay needs no reduction and waits in no residual.
    """
    for group, weight_decay in zip(optimizer.param_groups, decays, strict=True):
        for parameter in group["params"] if weight_decay else ():
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if DECAY not in state:
                state[DECAY] = torch.zeros_like(parameter)
            rate, now = float(group["lr"]), weight_decay * parameter
            state[DECAY].mul_(momentum).add_(now)
            parameter.add_(now.add_(state[DECAY], alpha=momentum) if group["nesterov"] else state[DECAY], alpha=-rate)
