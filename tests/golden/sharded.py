"""Trajectories of models that FSDP2 shards, two replicas of two shards if nothing else is said.

    python -m torch.distributed.run --standalone --nproc-per-node 4 -m tests.golden.sharded FILE CASE ...

writes the records of all ranks to FILE, by case.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparse_mpi.fsdp import attach

from .trajectories import SGD, SHARDED, Model, Trace, gradient

STEPS = 12
CUTS = [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 7)]


class Block(torch.nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(parameters)

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * part.view(p.shape)).sum() for p, part in zip(self.weights, parts, strict=True))


class Blocks(torch.nn.Module):
    """The parameters of `Model`, in units that FSDP2 shards; rows of some do not divide by two."""

    def __init__(self, mesh: DeviceMesh, values: dict[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        layers = list(Model().layers)
        self.sizes = [p.numel() for p in layers]
        self.blocks = torch.nn.ModuleList(Block(layers[cut]) for cut in CUTS)
        if values is not None:
            self.load_state_dict(values)
        for module in (*self.blocks, self):
            fully_shard(module, mesh=mesh)

    def forward(self, given: np.ndarray) -> torch.Tensor:
        parts = torch.from_numpy(given).split(self.sizes)
        return sum(block(parts[cut]) for block, cut in zip(self.blocks, CUTS, strict=True))

    def shards(self) -> list[torch.Tensor]:
        return [parameter.to_local() for parameter in self.parameters()]

    def whole(self) -> dict[str, torch.Tensor]:
        return {name: parameter.full_tensor().detach() for name, parameter in self.named_parameters()}


def steps(
    replicas: int = 2,
    resume_on: int = 0,
    make: Callable[..., torch.optim.Optimizer] = SGD,
    give: bool = True,
    passes: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Take the steps of a model, half of them on ``resume_on`` replicas if it is not 0, a flush at the end.

    ``give``: the reduction knows the optimizer. ``passes``: backward passes a step, of which the last is reduced.
    """
    trace, values, saved = Trace(), None, {}
    halves = [range(STEPS // 2), range(STEPS // 2, STEPS)] if resume_on else [range(STEPS)]
    with tempfile.TemporaryDirectory() as made:
        folder = [made]
        dist.broadcast_object_list(folder)
        for numbers, grid in zip(halves, (replicas, resume_on), strict=False):
            mesh = init_device_mesh("cpu", (grid, dist.get_world_size() // grid), mesh_dim_names=("replicate", "shard"))
            model = Blocks(mesh["shard"], values)
            optimizer = make(model.parameters())
            given = {"optimizer": optimizer} if give else {}
            reduction = attach(model, mesh["replicate"], density=0.05, **given, **options)
            if values is not None:
                if grid == replicas:
                    optimizer.load_state_dict(saved)
                reduction.load(folder[0])
            for step in numbers:
                optimizer.zero_grad()
                for number in range(passes):
                    model.set_requires_gradient_sync(number == passes - 1)
                    model(gradient(dist.get_rank(), passes * step + number)).backward()
                optimizer.step()
                trace.add(*model.shards())
            if values is None and resume_on:
                values, saved = model.whole(), deepcopy(optimizer.state_dict())
                reduction.save(folder[0])
    trace.add(*reduction.residuals().values())
    optimizer.zero_grad()
    reduction.flush(step=give)
    if not give:
        optimizer.step()
    trace.add(*model.shards())
    return trace.end()


def main() -> None:
    dist.init_process_group("gloo")
    seen: dict[str, list[Any]] = {}
    for name in sys.argv[2:]:
        seen[name] = [None] * dist.get_world_size()
        dist.all_gather_object(seen[name], steps(**SHARDED[name]))
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
