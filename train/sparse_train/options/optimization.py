"""Optimizers, and learning rate and density over a training run."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from sparse_mpi.cli.values import Value, share

Parameters = Iterable[nn.Parameter]


def spelled_option(name: str) -> str:
    """Return an option as a command line spells it, from its name in the parsed options."""
    return f"--{name.replace('_', '-')}"


def given(args: Namespace, names: Iterable[str]) -> str:
    """Return the first of these options that has been given, as a command line spells it; "" if none has."""
    return next((spelled_option(name) for name in names if getattr(args, name)), "")


def _norm(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


norm = Value(_norm, "a number > 0, or inf, which clips nothing", "1.0")


class Ramp(NamedTuple):
    """A density that falls from ``start`` to that of the rest of training in ``epochs``."""

    start: float
    epochs: float


def _densities(text: str) -> int | tuple[float, ...] | Ramp:
    if text.isdecimal():
        return int(text)
    start, at, epochs = text.partition("@")
    if at:
        return Ramp(share(start), norm(epochs))
    return tuple(share(each) for each in text.split(","))


densities = Value(_densities, "densities such as 0.25,0.0625, a number of epochs, or D@E", "0.25,0.0625")


def sgd(parameters: Parameters, args: Namespace) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, args.lr, args.momentum, weight_decay=args.weight_decay, fused=True)


def adam(parameters: Parameters, args: Namespace, kind: Any = torch.optim.Adam) -> torch.optim.Optimizer:
    """Make Adam (Kingma and Ba, ICLR 2015), or its variant ``kind``."""
    return kind(parameters, lr=args.lr, betas=(args.beta1, args.beta2), weight_decay=args.weight_decay, fused=True)


OPTIMIZERS: dict[str, Callable[[Parameters, Namespace], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": partial(adam, kind=torch.optim.AdamW),  # decoupled weight decay (Loshchilov and Hutter, ICLR 2019)
}


def linear(epoch: float, args: Namespace) -> float:
    """Return a factor that falls linearly from 1 after warm-up to 0 after ``args.epochs``.

    ``args.max_steps`` ends training earlier, but does not change the line.
    """
    return max(args.epochs - epoch, 0.0) / (args.epochs - args.warmup_epochs)


def cosine(epoch: float, args: Namespace) -> float:
    """Return a factor that falls as a cosine from 1 after warm-up to a tenth after ``args.epochs``."""
    return 0.55 + 0.45 * math.cos(math.pi * (1 - linear(epoch, args)))


SCHEDULES: dict[str, Callable[[float, Namespace], float]] = {
    "steps": lambda epoch, args: 0.1 ** sum(epoch >= milestone for milestone in args.milestones),
    "linear": linear,
    "cosine": cosine,
    "exponential": lambda epoch, args: args.decay ** int(epoch - args.warmup_epochs),
}


def learning_rate(epoch: float, args: Namespace, ranks: int) -> float:
    """Return the learning rate ``epoch`` epochs (a fraction within one) into training.

    It climbs linearly from ``peak / ranks`` to its peak in ``args.warmup_epochs``, and follows ``args.schedule`` from
    there. The peak is ``args.lr``, times ``ranks`` with ``args.lr_times_ranks``.
    """
    peak = args.lr * ranks if args.lr_times_ranks else args.lr
    if epoch < args.warmup_epochs:
        return peak / ranks + (peak - peak / ranks) * epoch / args.warmup_epochs
    return peak * SCHEDULES[args.schedule](epoch, args)


def density(epoch: float, final: float, warmup: int | Sequence[float] | Ramp = 0) -> float:
    """Return the share of the gradient to reduce ``epoch`` epochs (a fraction within one) into training.

    ``warmup`` lists the densities of the first epochs. As a number it is the epochs in which the density falls
    exponentially from 1 to ``final``, as published (Lin et al., ICLR'18): to 0.1 % in 4 epochs by 25, 6.3, 1.6, 0.4 %.
    As a `Ramp` it has the density at the start and the epochs in which it falls, also exponentially but in every step.
    """
    if isinstance(warmup, Ramp):
        return final * (warmup.start / final) ** max(0.0, 1 - epoch / warmup.epochs)
    number = int(epoch)
    if isinstance(warmup, int):
        return final ** ((number + 1) / (warmup + 1)) if number < warmup else final
    return warmup[number] if number < len(warmup) else final
