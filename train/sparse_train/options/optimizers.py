"""The optimizers that turn the mean gradient into new weights."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable

import torch
from torch import nn

Parameters = Iterable[nn.Parameter]


def sgd(parameters: Parameters, args: Namespace) -> torch.optim.Optimizer:
    """Make an optimizer of stochastic gradient descent with momentum."""
    return torch.optim.SGD(parameters, args.lr, args.momentum, weight_decay=args.weight_decay, fused=True)


def adam(parameters: Parameters, args: Namespace) -> torch.optim.Optimizer:
    """Make Adam (Kingma and Ba, ICLR 2015)."""
    return torch.optim.Adam(parameters, args.lr, _betas(args), weight_decay=args.weight_decay, fused=True)


def adamw(parameters: Parameters, args: Namespace) -> torch.optim.Optimizer:
    """Make Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""
    return torch.optim.AdamW(parameters, args.lr, _betas(args), weight_decay=args.weight_decay, fused=True)


def _betas(args: Namespace) -> tuple[float, float]:
    """Return how much of their means of gradients and squares stays from step to step."""
    return args.beta1, 0.999


OPTIMIZERS: dict[str, Callable[[Parameters, Namespace], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
}
