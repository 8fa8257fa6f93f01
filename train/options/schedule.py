"""Learning rate and density over a training run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence


def steps(epoch: float, args: Namespace) -> float:
    """A tenth from each of ``args.milestones`` (epochs) on."""
    return 0.1 ** sum(epoch >= milestone for milestone in args.milestones)


def linear(epoch: float, args: Namespace) -> float:
    """In a line from 1 after warm-up to 0 after ``args.epochs``; ``args.max_steps`` stops training, not the line."""
    return max(args.epochs - epoch, 0.0) / (args.epochs - args.warmup_epochs)


def exponential(epoch: float, args: Namespace) -> float:
    """``args.decay`` once for each whole epoch after warm-up."""
    return args.decay ** int(epoch - args.warmup_epochs)


SCHEDULES: dict[str, Callable[[float, Namespace], float]] = {
    "steps": steps,
    "linear": linear,
    "exponential": exponential,
}


def learning_rate(epoch: float, args: Namespace, ranks: int) -> float:
    """The rate ``epoch`` epochs (a fraction within one) into training.

    It climbs in a line from ``peak / ranks`` to its peak in ``args.warmup_epochs``, and goes on as ``args.schedule``
    says. The peak is ``args.lr``, times ``ranks`` with ``args.lr_times_ranks``.
    """
    peak = args.lr * ranks if args.lr_times_ranks else args.lr
    if epoch < args.warmup_epochs:
        return peak / ranks + (peak - peak / ranks) * epoch / args.warmup_epochs
    return peak * SCHEDULES[args.schedule](epoch, args)


def density(epoch: float, final: float, warmup: int | Sequence[float] = 0) -> float:
    """The share of the gradient to reduce ``epoch`` epochs (a fraction within one) into training.

    ``warmup`` lists those of the first epochs, or says in how many of them it falls exponentially from 1 to ``final``,
    as published (Lin et al., ICLR'18): to 0.1 % in 4 epochs, 25, 6.3, 1.6 and 0.4 %.
    """
    number = int(epoch)
    if isinstance(warmup, int):
        return final ** ((number + 1) / (warmup + 1)) if number < warmup else final
    return warmup[number] if number < len(warmup) else final
