"""A small model, its data, and the loop of local steps that the tests run on every rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from sparse_mpi.training.diloco import DiLoCo

torch.set_num_threads(1)


def net(seed: int = 0, shapes: tuple[int, ...] = (6, 9, 7, 3)) -> nn.Sequential:
    """A network whose layers have these widths."""
    torch.manual_seed(seed)
    layers = [part for a, b in zip(shapes, shapes[1:], strict=False) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def loss_of(model: nn.Sequential, rank: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, model[0].in_features, generator=draw)
    y = torch.randn(8, model[-1].out_features, generator=draw)
    return nn.functional.mse_loss(model(x), y)


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def nesterov(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def plain(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def adamw(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


class Replica(NamedTuple):
    """What one rank trains with."""

    model: nn.Sequential
    inner: torch.optim.Optimizer
    local: DiLoCo


def made(comm, sync_every: int = 4, *, inner=adamw, outer=nesterov, model=None, **options: Any) -> Replica:
    """Make a replica; options are `DiLoCo`'s."""
    model = model or net()
    optimizer = inner(model.parameters())
    if "team" not in options:
        options["comm"] = comm
    return Replica(model, optimizer, DiLoCo(model, optimizer, outer(model.parameters()), sync_every, **options))


def steps(replica: Replica, rank: int, numbers) -> None:
    """Take inner steps as a loop does that knows nothing of other ranks."""
    for number in numbers:
        replica.inner.zero_grad()
        loss_of(replica.model, rank, number).backward()
        replica.inner.step()


def common(local: DiLoCo) -> np.ndarray:
    """The global parameters of all fragments, one after the other."""
    return torch.cat([fragment.common for fragment in local.fragments]).numpy().copy()


def residuals(local: DiLoCo) -> np.ndarray:
    return np.concatenate([np.asarray(reducer.residual) for reducer in local.reducers]).copy()
