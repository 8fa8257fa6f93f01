"""Learning rate and density over a training run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence

from sparse_train.options.converters import Ramp


def steps(epoch: float, args: Namespace) -> float:
    """Return a factor that falls to a tenth at each of ``args.milestones`` (epochs)."""
    return 0.1 ** sum(epoch >= milestone for milestone in args.milestones)


def linear(epoch: float, args: Namespace) -> float:
    """Return a factor that falls linearly from 1 after warm-up to 0 after ``args.epochs``.

    ``args.max_steps`` ends training earlier, but does not change the line.
    """
    return max(args.epochs - epoch, 0.0) / (args.epochs - args.warmup_epochs)


def exponential(epoch: float, args: Namespace) -> float:
    """Return ``args.decay`` to the power of the whole epochs since warm-up."""
    return args.decay ** int(epoch - args.warmup_epochs)


SCHEDULES: dict[str, Callable[[float, Namespace], float]] = {
    "steps": steps,
    "linear": linear,
    "exponential": exponential,
}


def learning_rate(epoch: float, args: Namespace, ranks: int) -> float:
    """Return the learning rate ``epoch`` epochs (a fraction within one) into training.

    It climbs linearly from ``peak / ranks`` to its peak in ``args.warmup_epochs``, and goes on as ``args.schedule``
    says. The peak is ``args.lr``, times ``ranks`` with ``args.lr_times_ranks``.
    """
    peak = args.lr * ranks if args.lr_times_ranks else args.lr
    if epoch < args.warmup_epochs:
        return peak / ranks + (peak - peak / ranks) * epoch / args.warmup_epochs
    return peak * SCHEDULES[args.schedule](epoch, args)


def density(epoch: float, final: float, warmup: int | Sequence[float] | Ramp = 0) -> float:
    """Return the share of the gradient to reduce ``epoch`` epochs (a fraction within one) into training.

    ``warmup`` lists the densities of the first epochs. As a number it says in how many epochs the density falls
    exponentially from 1 to ``final``, as published (Lin et al., ICLR'18): to 0.1 % in 4 epochs by 25, 6.3, 1.6, 0.4 %.
    As a `Ramp` it says where the density starts and in how many epochs it falls, also exponentially but in every step.
    """
    if isinstance(warmup, Ramp):
        return final * (warmup.start / final) ** max(0.0, 1 - epoch / warmup.epochs)
    number = int(epoch)
    if isinstance(warmup, int):
        return final ** ((number + 1) / (warmup + 1)) if number < warmup else final
    return warmup[number] if number < len(warmup) else final
