"""A small model, its data, and the loops by which the tests train it on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo

torch.set_num_threads(1)
SMALL = 2e-3  # MB: a bucket for nearly every parameter of a wide net
Loss = Callable[[Any, int], torch.Tensor]  # of a model in a step


def net(seed: int = 0, shapes: tuple[int, ...] = (6, 9, 7, 3)) -> nn.Sequential:
    """A network whose layers have these widths."""
    torch.manual_seed(seed)
    layers = [part for a, b in zip(shapes, shapes[1:], strict=False) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def wide_net(seed: int = 0) -> nn.Sequential:
    """One with more to select from."""
    return net(seed, (20, 40, 30, 5))


def loss_of(model: nn.Sequential, rank: int, step: int) -> torch.Tensor:
    """The loss of a rank in a step, on data of its own."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, model[0].in_features, generator=draw).to(model[0].weight)
    y = torch.randn(8, model[-1].out_features, generator=draw).to(x)
    return nn.functional.mse_loss(model(x), y)


def own(rank: int) -> Loss:
    """The loss that a rank goes along."""
    return lambda model, step: loss_of(model, rank, step)


def mean(ranks: int, loss: Callable[..., torch.Tensor] = loss_of) -> Loss:
    """The mean of all ranks' losses, along which one process trains as they do together."""
    return lambda model, step: sum(loss(model, rank, step) for rank in range(ranks)) / ranks


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, numbers: Iterable[int]) -> np.ndarray:
    """Take steps as a plain loop does; return the weights."""
    for number in numbers:
        optimizer.zero_grad()
        loss(model, number).backward()
        optimizer.step()
    return weights(model)


def weights(model: nn.Module) -> np.ndarray:
    """All parameters, one after the other, in single precision."""
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).cpu().numpy()


def equal(results: list[np.ndarray]) -> bool:
    """Whether all ranks have the same."""
    return all(np.array_equal(one, results[0]) for one in results)


def nesterov(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def plain(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def adamw(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def wrapped(model, comm, make=torch.optim.SGD, lr=0.1, **options) -> DistributedOptimizer:
    """The optimizer of all ranks around a new one of torch; options are `DistributedOptimizer`'s."""
    return DistributedOptimizer(
        make(model.parameters(), lr=lr), comm=comm, **{"density": 0.05, "bucket_cap_mb": SMALL} | options
    )


class Replica(NamedTuple):
    """What one rank trains with."""

    model: nn.Sequential
    inner: torch.optim.Optimizer
    local: DiLoCo


def made(comm, sync_every: int = 4, *, inner=adamw, outer=nesterov, model=None, **options: Any) -> Replica:
    """Make a replica; options are `DiLoCo`'s."""
    model = model or net()
    optimizer = inner(model.parameters())
    return Replica(
        model, optimizer, DiLoCo(model, optimizer, outer(model.parameters()), sync_every, comm=comm, **options)
    )


# Steps between two exchanges, fragments, delay, share of the local parameters that is kept
SCHEDULES = [(4, 1, 0, 0.0), (4, 2, 1, 0.5), (6, 1, 4, None)]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)


def scheduled(comm, schedule, **options: Any) -> Replica:
    """Make a replica with one of these schedules."""
    every, fragments, delay, alpha = schedule
    return made(comm, every, fragments=fragments, fragment_sync_delay=delay, fragment_update_alpha=alpha, **options)


def steps(replica: Replica, rank: int, numbers) -> None:
    """Take inner steps as a loop does that knows nothing of other ranks."""
    train(replica.model, replica.inner, own(rank), numbers)


def common(local: DiLoCo) -> np.ndarray:
    """The global parameters of all fragments, one after the other."""
    return torch.cat([fragment.common for fragment in local.fragments]).numpy().copy()


def residuals(local: DiLoCo) -> np.ndarray:
    return np.concatenate([np.asarray(reducer.residual) for reducer in local.reducers]).copy()


def said(ranks, caplog, words: str) -> bool:
    """Whether rank 0 has logged ``words`` once, and no other one; in `World` all ranks have one log."""
    return caplog.text.count(words) == (getattr(ranks, "rank", 0) == 0)
