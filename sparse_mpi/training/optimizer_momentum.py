"""Decide who applies the momentum of a torch optimizer.

The optimizer itself applies it to whatever arrives, however late. Instead a feedback rule can apply SGD's before
entries are selected, and Adam's moments can make up for the steps that an entry has waited, see `staleness_adam`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from sparse_mpi.feedback import FEEDBACKS, ErrorFeedback, Feedback, GlobalMomentum, LeakyFeedback, MomentumCorrection
from sparse_mpi.training.staleness_adam import TRAVELLING, StalenessAwareAdam, check_adam

TAKING = ("matched", "global", "corrected")  # modes in which error feedback takes SGD's momentum over
MODES = ("local", *TAKING, "arrival", TRAVELLING)
USUAL_DENSITY = 0.021  # with second moments: elect sends as many bytes as at its usual density without
LAST = "last_mean"  # the key, in the optimizer's state of a parameter, of the gradient of the step before, for Nesterov
SHORTEST = 0.01  # of what waits, the least share that a step sends or lets fade, see `fading`
DECAY = "decay_momentum"  # the key, in the optimizer's state of a parameter, of the momentum of its weight decay


@dataclass
class MomentumState:
    """Who applies the optimizer's momentum, and to which gradients."""

    taken: float | None = None  # what error feedback has taken over; None: nothing
    late: float | None = None  # the momentum that it applies to sparse sums
    looks_ahead: bool = False  # Nesterov's look ahead, if any, is left to do when the gradients are there
    waited: set[Tensor] = field(default_factory=set)  # the parameters whose sums are sparse in this step
    adam: StalenessAwareAdam | None = None  # takes the steps of Adam

    def applied(self, parameter: Tensor) -> float | None:
        return self.late if parameter in self.waited else self.taken

    @classmethod
    def of(cls, optimizer: Optimizer, mode: str, rule: object) -> MomentumState:
        """Return the state of ``optimizer`` in a ``mode`` that has made the feedback ``rule``."""
        # The momentum of now: `without_momentum` raises when somebody changes it in the optimizer
        taken = float(optimizer.param_groups[0]["momentum"]) if mode in TAKING else None
        late = rule.late if isinstance(rule, GlobalMomentum) else None
        return cls(taken, taken if late is None else late, mode in ("matched", "global"))


def default_mode(optimizer: Optimizer, feedback: str | Feedback, carries: bool) -> str:
    """Return the best momentum mode that this optimizer and algorithm support.

    The momentum of SGD becomes global and is matched to the wait, and Adam goes by second moments that travel, where
    the algorithm ``carries`` them, or else by arrival, if ``feedback`` leaves that open.
    """
    # SGD is fit for the first alone, Adam for the others
    for mode in ("matched", *([TRAVELLING] if carries else []), "arrival"):
        try:
            momentum_rule(optimizer, feedback, mode)
        except (TypeError, ValueError):
            continue
        if mode != "matched" or optimizer.param_groups[0]["momentum"]:  # SGD may have none to take over
            return mode
    return "local"


def matched(momentum: float, share: float) -> float:
    """Return the momentum for sums of which a ``share`` of the entries arrives in a step.

    A sum that arrives late is stale when it is applied: it wants half of the effective rate ``lr / (1 - momentum)`` of
    gradients that arrive in every step, and a shorter momentum. So ``1 - matched`` is ``1 - momentum`` where everything
    arrives, and almost twice that where little does: 0.9 becomes 0.8. docs/explanation/accuracy.md has figures.
    """
    return max(0.0, momentum - (1 - momentum) * (1 - share))


def fading(share: float) -> float:
    """Return the share of what waits that fades in each step, for sums of which a ``share`` of the entries arrives.

    Where entries wait longer than 100 steps, old gradients outweigh new ones. So what waits lives for no longer: it is
    sent or fades, together 1 % a step. Where 1 % or more arrives nothing fades, nor where ``share`` is 0, not known.
    docs/explanation/accuracy.md has figures.
    """
    return max(0.0, SHORTEST - share) if share else 0.0


def announcement(optimizer: Optimizer, mode: str, rule: str | Feedback) -> str:
    """Return the line that says what a mode, taken by default, does to ``optimizer``; empty for the mode "local"."""
    name = type(optimizer).__name__
    late, fades = (rule.late or 0, 1 - rule.keep) if isinstance(rule, GlobalMomentum) else (0, 0)
    fade = f", and {fades:.2%} of what waits fades in each step" if fades else ""
    none = ", feedback=ErrorFeedback() lets nothing fade" if fades else ""
    return {
        "matched": f"sparse_mpi: {name}'s momentum enters before entries are selected, as {late:.3g} for sums that are "
        f"late{fade} (momentum='matched'); momentum='global' keeps the number{none}, 'local' leaves it to the "
        "optimizer",
        TRAVELLING: f"sparse_mpi: {name} divides by second moments of the ranks' own gradients, which travel with the "
        f"entries (momentum={TRAVELLING!r}); 'arrival' makes up for the steps that an entry has waited, 'local' takes "
        "entries as they come",
        "arrival": f"sparse_mpi: {name} makes up for the steps that an entry has waited (momentum='arrival'); "
        "momentum='local' takes entries as they come",
    }.get(mode, "")


def momentum_rule(optimizer: Optimizer, feedback: str | Feedback, momentum: str, share: float = 1.0) -> str | Feedback:
    """Return the feedback rule to use: ``feedback``, or one that has taken the optimizer's momentum over.

    ``share`` is that of the entries which arrive in a step, see `matched` and `fading`; 0 where it is not known. What
    waits fades only where ``feedback`` is the default's name, not an instance.

    Raises:
        TypeError: ``optimizer`` has not the momentum that the mode is for.
        ValueError: there is no such mode, momentum is asked for twice, or the optimizer's cannot be taken over.
    """
    if momentum not in MODES:
        raise ValueError(f"momentum must be one of {', '.join(MODES)}, got {momentum!r}")
    # A name that no rule has is left to the reducer, which reports it
    rule = FEEDBACKS[feedback]() if isinstance(feedback, str) and feedback in FEEDBACKS else feedback
    keep = _keep_of(rule)
    if momentum != "local" and keep is None:
        raise ValueError(
            f"feedback must be 'residual' or leaky with momentum={momentum!r}, which says what happens to late "
            f"entries, got {feedback!r}; use momentum='local', and an optimizer without momentum"
        )
    # Adam: the moments catch up or travel, and error feedback stays as it is
    if momentum in ("arrival", TRAVELLING):
        check_adam(optimizer, momentum)
        return feedback
    # SGD: a rule with its momentum takes the place of feedback
    if momentum != "local" and keep is not None:
        if momentum == "matched" and feedback == "residual":
            keep = 1 - fading(share)
        return _taken_over(optimizer, momentum, keep, share)
    # The optimizer keeps its momentum: the rule must have none
    own = max((float(group.get("momentum", 0)) for group in optimizer.param_groups), default=0.0)
    if isinstance(rule, Feedback) and rule.traits.momentum and own:
        raise ValueError(
            f"momentum must be given once, got {own} in the optimizer and {rule.traits.momentum} in {rule!r}; make the "
            f"optimizer with momentum=0, or use feedback='residual' and momentum='global'"
        )
    return feedback


def _keep_of(rule: object) -> float | None:
    # A class of the user's that derives from one of these does more
    known = type(rule) in (ErrorFeedback, LeakyFeedback, GlobalMomentum, MomentumCorrection)
    if not isinstance(rule, ErrorFeedback) or not known:
        return None
    return None if rule.traits.momentum else getattr(rule, "keep", 1.0)


def _taken_over(optimizer: Optimizer, mode: str, keep: float, share: float) -> GlobalMomentum | MomentumCorrection:
    """Return the rule that applies the momentum of ``optimizer`` from now on, and keeps ``keep`` of the residual."""
    if not isinstance(optimizer, SGD):
        raise TypeError(
            f"momentum must not be {mode!r} with {type(optimizer).__name__}, which has not the momentum of SGD; leave "
            "it out, or use torch.optim.SGD"
        )
    groups = optimizer.param_groups
    if given := [group["dampening"] for group in groups if group["dampening"]]:
        raise ValueError(f"dampening must be 0 with momentum={mode!r}, got {given[0]}; use momentum='local'")
    # One rule applies one momentum to all parameters, so that all groups must have the same
    for option in ("momentum", "nesterov"):
        several = sorted({group[option] for group in groups})
        if len(several) > 1:
            raise ValueError(
                f"{option} must be the same in all parameter groups with momentum={mode!r}, got "
                f"{', '.join(map(str, several))}; use momentum='local'"
            )
    momentum = groups[0]["momentum"]
    if mode in ("matched", "global"):
        return GlobalMomentum(momentum, keep=keep, late=matched(momentum, share) if mode == "matched" else None)
    if keep < 1:
        raise ValueError(f"feedback must be 'residual' with momentum='corrected', got one that keeps {keep}")
    return MomentumCorrection(momentum, nesterov=groups[0]["nesterov"])


@contextmanager
def without_momentum(
    optimizer: Optimizer, momentum: float, applied: Callable[[Tensor], Any], look_ahead: bool
) -> Iterator[Callable[[], None]]:
    """Let ``optimizer`` step without momentum and weight decay in this context.

    ``applied(parameter)`` is the one that the error feedback has applied in its place to a gradient that is there.

    Yields:
        What does for them what is left to do, to be called when the gradients are there: the momentum of gradients that
        are sparse tensors, of which nothing is late; Nesterov's look ahead, where the momentum is global; and the decay
        of the weights.

    Raises:
        ValueError: somebody has changed the optimizer's momentum, which was taken over, from ``momentum``, or its kind.
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

    def finish() -> None:
        _push_sparse(optimizer, momentum)
        if look_ahead:
            _look_ahead(optimizer, applied)
        # As in torch, the decay goes by the weights before the step
        _decay_weights(optimizer, momentum, decays)

    with along_gradients(optimizer):
        yield finish


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
