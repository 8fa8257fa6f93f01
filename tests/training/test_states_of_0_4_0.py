"""States that 0.4.0 has saved at each door, on one rank behind four steps, load and go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparse_mpi import DiLoCo
from sparse_mpi.comm import NullComm
from sparse_mpi.ddp import SparseState
from sparse_mpi.fsdp import attach
from sparse_mpi.optim import DistributedOptimizer

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def made(door: str, model: nn.Module, optimizer: Any) -> Any:
    names, how = model.named_parameters(), {"density": 0.2, "comm": NullComm()}
    if door == "optimizer":
        return DistributedOptimizer(optimizer, names, **how).reduction
    if door == "ddp":
        return SparseState(names, optimizer=optimizer, dense_steps=1, **how)
    return DiLoCo(model, optimizer, torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True), 2, **how)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    shutil.unpack_archive(Path(__file__).with_name("states_0_4_0.zip"), tmp_path)
    return tmp_path


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", ["optimizer", "ddp", "local"])
def test_a_state_loads_with_all_that_it_owes(saved: Path, name: str, kind: str) -> None:
    state = torch.load(saved / "states.pt")[name, kind]
    model = net()
    model.load_state_dict(state["model"])
    optimizer = OPTIMIZERS[kind](model.parameters())
    door = made(name, model, optimizer)
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    door.load_state_dict(state["door"])
    owed = np.concatenate([vector["reducer"]["residual"].numpy() for vector in state["door"]["vectors"]])
    assert owed.any() and sorted(np.concatenate([*door.residuals().values()])) == sorted(owed)
    assert door.steps == (0 if name == "optimizer" else 4)
    model(torch.ones(3, 6)).square().mean().backward()
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_folder_of_fsdp2_loads_with_all_that_it_owes(saved: Path, group: Any, kind: str) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    model = net()
    for part in (model[0], model):
        fully_shard(part, mesh=mesh["shard"])
    optimizer = OPTIMIZERS[kind](model.parameters())
    door = attach(model, mesh["replicate"], density=0.2, optimizer=optimizer)
    door.load(saved / f"fsdp-{kind}")
    owed = torch.load(saved / "states.pt")["fsdp", kind]["residuals"]
    assert door.steps == 4 and all(np.array_equal(door.residuals()[name], left) for name, left in owed.items())
    model(torch.ones(3, 6)).square().mean().backward()
    optimizer.step()
