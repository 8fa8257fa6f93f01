"""Decide by what rule a torch optimizer steps along gradients of which a part arrives late: `decide`.

The optimizer itself applies its momentum to whatever arrives, however late. Instead a feedback rule can apply SGD's
before entries are selected, and Adam's moments can make up for the steps that an entry has waited, see `adam_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.optim import SGD, Optimizer

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.feedback import FEEDBACKS, ErrorFeedback, Feedback, GlobalMomentum, LeakyFeedback, MomentumCorrection
from sparse_mpi.reduction.arguments import make_algorithm, resolve_k, usual_density
from sparse_mpi.reduction.settings import Settings, make_settings
from sparse_mpi.training.adam_steps import TRAVELLING, check_adam, second_beta

ARRIVAL = "arrival"  # the mode in which an entry that arrives makes up for the steps that it has waited
TAKING = ("matched", "global", "corrected")  # modes in which error feedback takes SGD's momentum over
MODES = ("local", *TAKING, ARRIVAL, TRAVELLING)
USUAL_DENSITY = 0.021  # with second moments: elect sends as many bytes as at its usual density without
SHORTEST = 0.01  # of what waits, the least share that a step sends or lets fade, see `fading`


class Rule(NamedTuple):
    """How an optimizer steps, and what the reduction does for that."""

    mode: str  # one of `MODES`
    feedback: str | Feedback
    density: float | None  # of the reduction, where the caller gave none; None: the algorithm's own
    second_moment: float | None = None  # the beta of the one that travels
    momentum: float | None = None  # that error feedback has taken over
    late: float | None = None  # the one that it applies to sparse sums
    announcement: str = ""  # what to tell whoever has not chosen the mode

    @property
    def looks_ahead(self) -> bool:
        """Return True if Nesterov's look ahead, if any, is left to do when the gradients are there."""
        return self.mode in ("matched", "global")


def decide(
    optimizer: Optimizer | None,
    momentum: str | None,
    feedback: str | Feedback,
    algorithm: Algorithm,
    share: float,
    given: bool,
) -> Rule:
    """Return the rule for ``optimizer`` with these arguments of `DistributedOptimizer`, the same for all that train.

    Args:
        optimizer: None: gradients are reduced for somebody who is not known.
        momentum: one of `MODES`; None: the best that optimizer, algorithm and feedback allow.
        share: the share of the entries that a step sends.
        given: ``share`` is what the caller wants, and not the algorithm's usual one.

    Raises:
        TypeError, ValueError: see `momentum_rule`; or ``momentum`` without an optimizer.
    """
    if optimizer is None:
        if momentum not in (None, "local"):
            raise ValueError(f"optimizer must be given with momentum={momentum!r}, which is its, got None")
        return Rule("local", feedback, None)
    if isinstance(inner := getattr(optimizer, "optim", None), Optimizer):
        raise TypeError(
            f"optimizer must be the one that steps, got {type(optimizer).__name__} around {type(inner).__name__}; pass "
            ".optim"
        )
    mode = _default_mode(optimizer, feedback, algorithm, share) if momentum is None else momentum
    rule = momentum_rule(optimizer, feedback, mode, share)
    found = Rule(mode, rule, None)
    if mode in TAKING:
        taken = float(optimizer.param_groups[0]["momentum"])
        late = rule.late if isinstance(rule, GlobalMomentum) and rule.late is not None else taken
        found = found._replace(momentum=taken, late=late)
    if mode == TRAVELLING:
        beta = second_beta(optimizer.param_groups[0])
        found = found._replace(second_moment=beta, density=None if given else USUAL_DENSITY)
    return found if momentum else found._replace(announcement=_announcement(optimizer, found))


class HookSettings(NamedTuple):
    """What a hook of torch reduces by, and how the optimizer of its gradients steps."""

    vectors: Settings  # of each, but for layout and k
    share: float  # of its entries that each sends
    rule: Rule


def hook_settings(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    density: float | None,
    algorithm: str | Algorithm,
    feedback: str | Feedback,
    optimizer: Optimizer | None,
    momentum: str | None,
    options: Mapping[str, Any],
) -> HookSettings:
    """Return the settings for gradients of these ``shapes``, by name, by arguments as of `DistributedOptimizer`."""
    made = make_algorithm(algorithm, dict(options))
    share = usual_density(made) if density is None else density
    resolve_k(1, None, share)  # checks it
    rule = decide(optimizer, momentum, feedback, made, share, given=density is not None)
    share = share if rule.density is None else rule.density
    beta = rule.second_moment
    every = list(shapes.values()) or 1
    settings = make_settings(every, density=share, algorithm=made, feedback=rule.feedback, second_moment=beta)
    return HookSettings(settings, share, rule)


def _default_mode(optimizer: Optimizer, feedback: str | Feedback, algorithm: Algorithm, share: float) -> str:
    """Return the best mode that this optimizer and algorithm support, if ``feedback`` leaves that open.

    The momentum of SGD becomes global and is matched to the wait. Adam goes by second moments that travel, where the
    algorithm can carry them, or else by arrival; where everything is sent it is as ever.
    """
    adam = (*([TRAVELLING] if algorithm.traits.carries else []), ARRIVAL) if share < 1 else ()
    # SGD is fit for the first alone, Adam for the others
    for mode in ("matched", *adam):
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


def _announcement(optimizer: Optimizer, found: Rule) -> str:
    name, rule = type(optimizer).__name__, found.feedback
    fades = 1 - rule.keep if isinstance(rule, GlobalMomentum) else 0
    fade = f", and {fades:.2%} of what waits fades in each step" if fades else ""
    none = ", feedback=ErrorFeedback() lets nothing fade" if fades else ""
    return {
        "matched": f"sparse_mpi: {name}'s momentum enters before entries are selected, as {found.late or 0:.3g} for "
        f"sums that are late{fade} (momentum='matched'); momentum='global' keeps the number{none}, 'local' leaves it "
        "to the optimizer",
        TRAVELLING: f"sparse_mpi: {name} divides by second moments of the ranks' own gradients, which travel with the "
        f"entries (momentum={TRAVELLING!r}); 'arrival' makes up for the steps that an entry has waited, 'local' takes "
        "entries as they come",
        ARRIVAL: f"sparse_mpi: {name} makes up for the steps that an entry has waited (momentum={ARRIVAL!r}); "
        "momentum='local' takes entries as they come",
    }.get(found.mode, "")


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
    if momentum in (ARRIVAL, TRAVELLING):
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
