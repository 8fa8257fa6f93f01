"""Decide the rule by which a torch optimizer steps along gradients that arrive late in part: `decide`.

An optimizer applies its momentum to each arriving sum, however late. Instead a feedback rule can apply SGD's before the
selection, and Adam's moments can make up for an entry's wait, see `adam_steps`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.optim import SGD, Optimizer

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import describe
from sparse_mpi.checks import check_choice
from sparse_mpi.comm.job.launcher import ALGORITHM
from sparse_mpi.comm.runtime import told_rank
from sparse_mpi.feedback import FEEDBACKS, ErrorFeedback, Feedback, GlobalMomentum, LeakyFeedback, MomentumCorrection
from sparse_mpi.reduction.arguments import ignores_k, make_algorithm, resolve_k, spelled, usual_density
from sparse_mpi.reduction.settings import Settings, make_settings
from sparse_mpi.sparse import Layout
from sparse_mpi.training.adam_steps import ADAMS, TRAVELLING, check_adam, memory, second_beta
from sparse_mpi.training.own_step import steps_as

LOGGER = logging.getLogger("sparse_mpi")
UNCLIPPED = "; clip the mean gradient at 1: without, a small GPT-2 from its first step was 0.3 of loss behind dense"
ARRIVAL = "arrival"  # the mode in which an arriving entry makes up for the steps that it has waited
TAKING = ("matched", "global", "corrected")  # modes in which error feedback takes SGD's momentum over
MODES = ("local", *TAKING, ARRIVAL, TRAVELLING)
KNOWN: tuple[type[Optimizer], ...] = (SGD, *ADAMS[TRAVELLING])  # optimizers whose momentum can be taken over
# Subclasses of users do more
PLAIN = (ErrorFeedback, LeakyFeedback, GlobalMomentum, MomentumCorrection)
SHORTEST = 0.01  # least share of the residual that a step sends or lets fade, see `fading`


class Rule(NamedTuple):
    """How an optimizer steps, and the reduction's part in it."""

    mode: str  # one of `MODES`
    feedback: str | Feedback
    second_moment: float | None = None  # the beta of the second moment that travels
    least_beta: float = 0.0  # least beta of travelling moments, whatever the optimizer's
    momentum: float | None = None  # momentum that error feedback has taken over
    late: float | None = None  # the momentum that the optimizer applies to sparse sums
    announcement: str = ""  # a message for users who have not chosen the mode


def decide(
    optimizer: Optimizer | None, momentum: str | None, feedback: str | Feedback, algorithm: Algorithm, share: float
) -> Rule:
    """Return the rule for ``optimizer``, None: not known, where a step sends a ``share`` of the entries.

    Raises TypeError or ValueError as `momentum_rule` does, and for a ``momentum`` without an optimizer.
    """
    if optimizer is None:
        if momentum not in (None, "local"):
            raise ValueError(f"optimizer must be given with momentum={momentum!r}, which is its, got None")
        return Rule("local", feedback)
    if isinstance(inner := getattr(optimizer, "optim", None), Optimizer):
        raise TypeError(
            f"optimizer must be the one that steps, got {type(optimizer).__name__} around {type(inner).__name__}; pass "
            ".optim"
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer or None, got {describe(optimizer)}")
    mode = _default_mode(optimizer, feedback, algorithm, share) if momentum is None else momentum
    found = Rule(mode, momentum_rule(optimizer, feedback, mode, share))
    first = optimizer.param_groups[0]
    if mode in TAKING:
        taken = float(first["momentum"])
        late = getattr(found.feedback, "late", None)
        found = found._replace(momentum=taken, late=taken if late is None else late)
    if mode == TRAVELLING and not algorithm.traits.carries:
        raise ValueError(
            f"algorithm must carry second moments with momentum={TRAVELLING!r}, got {algorithm!r}; use "
            "algorithm='elect', or momentum='arrival'"
        )
    if mode == TRAVELLING:
        least = memory(share)
        found = found._replace(second_moment=second_beta(first, least), least_beta=least)
    return found if momentum else found._replace(announcement=_announcement(optimizer, found))


def ruled_settings(
    layout: object,
    optimizer: Optimizer | None,
    momentum: str | None,
    feedback: str | Feedback,
    algorithm: str | Algorithm,
    *,
    density: float | None,
    k: int | None = None,
    whole: bool = False,
    options: Mapping[str, Any],
    **limits: Any,
) -> tuple[Settings, float, Rule]:
    """Return the settings, the share of its entries that each vector sends, and the rule.

    Arguments are as for `DistributedOptimizer`; ``limits`` are for `make_settings`. ``whole`` has the rule go by the
    share of whole entries.
    """
    options = dict(options)
    # Hooks are given these among the options
    limits |= {name: options.pop(name) for name in ("clip_norm", "nonfinite") if name in options}
    if over := os.environ.get(ALGORITHM):
        if told_rank() == 0:
            LOGGER.warning("%s: %s in place of %s", ALGORITHM, over, algorithm)
        (algorithm, options), momentum = spelled(over, f"{ALGORITHM}: "), None
        if ignores_k(algorithm):  # it sends as much in every step, and is as dense to an optimizer
            k, density = None, 1.0
    made = make_algorithm(algorithm, options)
    share = usual_density(made) if density is None else density
    size = Layout.of(layout).size if whole else 1
    entries = resolve_k(size, k, density, share)  # checks them, too
    rule = decide(optimizer, momentum, feedback, made, entries / size if whole else share)
    if rule.mode == TRAVELLING and k is None and density is None:
        share = usual_density(made, second_moment=True)
    limits |= {"feedback": rule.feedback, "second_moment": rule.second_moment}
    settings = make_settings(layout, k=k, density=share if k is None else None, algorithm=made, **limits)
    if rule.mode == TRAVELLING and rule.announcement and settings.clip_norm is None:
        rule = rule._replace(announcement=rule.announcement + UNCLIPPED)
    return settings, share, rule


def _default_mode(optimizer: Optimizer, feedback: str | Feedback, algorithm: Algorithm, share: float) -> str:
    """Return the best mode of this optimizer and algorithm, if ``feedback`` leaves that open."""
    # SGD can take the first alone, Adam the others; where everything is sent Adam is unchanged
    adam = () if share >= 1 else (TRAVELLING, ARRIVAL) if algorithm.traits.carries else (ARRIVAL,)
    for mode in ("matched", *adam):
        try:
            momentum_rule(optimizer, feedback, mode)
        except (TypeError, ValueError):
            continue
        if mode != "matched" or optimizer.param_groups[0]["momentum"]:  # SGD may have none to take over
            return mode
    return "local"


def matched(momentum: float, share: float) -> float:
    """Return the momentum for late sums, where a ``share`` of entries arrives in a step, see accuracy.md.

    Late sums want half of the effective rate ``lr / (1 - momentum)``: where little arrives 0.9 becomes 0.8.
    """
    return max(0.0, momentum - (1 - momentum) * (1 - share))


def fading(share: float) -> float:
    """Return the share of residuals that fades in a step, where a ``share`` of entries arrives; 0: not known.

    Sent and faded shares together are 1 % a step, so that no entry waits for over 100 steps, see accuracy.md.
    """
    return round(max(0.0, SHORTEST - share), 4) if share else 0.0  # whole entries may be a little less than 1 %


def _announcement(optimizer: Optimizer, found: Rule) -> str:
    rule, name = found.feedback, f"sparse_mpi: {type(optimizer).__name__}"
    fades = 1 - rule.keep if isinstance(rule, GlobalMomentum) else 0
    fade = f", and {fades:.2%} of what waits fades in each step" if fades else ""
    none = ", feedback=ErrorFeedback() lets nothing fade" if fades else ""
    return {
        "matched": f"{name}'s momentum enters before entries are selected, as {found.late or 0:.3g} for sums that are "
        f"late{fade}, so that .grad has it too (momentum='matched'); 'global' keeps the number{none}, 'local' leaves "
        "it to the optimizer",
        TRAVELLING: f"{name} elects entries and moves weights in units of second moments of the ranks' own gradients, "
        "which travel with the entries (momentum='second-moment'); 'arrival' makes up for the steps that an entry has "
        "waited, 'local' takes them as they come",
        ARRIVAL: f"{name} makes up for the steps that an entry has waited (momentum='arrival'); momentum='local' takes "
        "entries as they come",
        # Subclasses of optimizers whose momentum would have been taken over
        "local": f"{name} has a step of its own, and takes entries as they come (momentum='local')"
        if isinstance(optimizer, KNOWN) and not steps_as(optimizer, *KNOWN)
        else "",
    }.get(found.mode, "")


def momentum_rule(optimizer: Optimizer, feedback: str | Feedback, momentum: str, share: float = 1.0) -> str | Feedback:
    """Return the feedback rule: ``feedback``, or one that applies the optimizer's momentum in its place.

    A ``share`` of entries arrives in a step, 0: not known. Residuals fade only where ``feedback`` is the default's
    name. Raises TypeError or ValueError if the mode does not fit.
    """
    check_choice("momentum", momentum, MODES)
    # A name that no rule has is left to the reducer, which reports it
    rule = FEEDBACKS[feedback]() if isinstance(feedback, str) and feedback in FEEDBACKS else feedback
    if momentum == "local":  # the optimizer keeps its momentum: the rule must have none
        own = max((float(group.get("momentum", 0)) for group in optimizer.param_groups), default=0.0)
        if isinstance(rule, Feedback) and rule.traits.momentum and own:
            raise ValueError(
                f"momentum must be given once, got {own} in the optimizer and {rule.traits.momentum} in {rule!r}; make "
                f"the optimizer with momentum=0, or use feedback='residual' and momentum='global'"
            )
        return feedback
    if type(rule) not in PLAIN or not isinstance(rule, ErrorFeedback) or rule.traits.momentum:
        raise ValueError(
            f"feedback must be 'residual' or leaky with momentum={momentum!r}, which says what happens to late "
            f"entries, got {feedback!r}; use feedback='residual', or momentum='local' and an optimizer without momentum"
        )
    if momentum in TAKING:  # a rule with SGD's momentum takes the place of feedback
        fades = momentum == "matched" and feedback == "residual"
        return _taken_over(optimizer, momentum, 1 - fading(share) if fades else getattr(rule, "keep", 1.0), share)
    check_adam(optimizer, momentum)  # its moments catch up or travel, and error feedback stays as it is
    return feedback


def _taken_over(optimizer: Optimizer, mode: str, keep: float, share: float) -> GlobalMomentum | MomentumCorrection:
    if not steps_as(optimizer, SGD):
        raise TypeError(
            f"momentum must not be {mode!r} with {type(optimizer).__name__}, whose step is not that of torch's "
            "SGD; leave it out, or use torch.optim.SGD"
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
        raise ValueError(
            f"feedback must keep all with momentum='corrected', got one that keeps {keep}; use feedback='residual'"
        )
    return MomentumCorrection(momentum, nesterov=groups[0]["nesterov"])
