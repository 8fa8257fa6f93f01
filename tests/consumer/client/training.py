"""A training script, and a run that is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import assert_type

from sparse_mpi import DiLoCo, SparseAllreduce, SparseVector, checkpoint
from sparse_mpi.comm import Comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team
from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters


def three_lines(model: nn.Module, comm: Comm) -> None:
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), density=0.05, comm=comm)
    broadcast_parameters(model.state_dict(), comm=comm)
    broadcast_optimizer_state(optimizer, comm=comm)
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert_type(optimizer.reduction.density, float | None)
    optimizer.flush()


def local_steps(model: nn.Module, comm: Comm) -> int:
    inner = torch.optim.AdamW(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(model, inner, outer, sync_every=4, comm=comm) as loop:
        assert_type(loop, DiLoCo)
        return loop.synchronizations


def hooked(model: nn.parallel.DistributedDataParallel) -> SparseState:
    state = SparseState(model.named_parameters(), density=0.01, algorithm="elect")
    model.register_comm_hook(state, sparse_hook)
    return state


def resumed(folder: Path, comm: Comm) -> int:
    reducer = SparseAllreduce(100, k=10, comm=comm)
    assert_type(reducer.step(torch.ones(100)), SparseVector[torch.Tensor] | torch.Tensor)
    assert_type(reducer.flush(like=torch.ones(1)), torch.Tensor)
    kept = checkpoint.save(folder, 3, {"model": "mine"}, b"", reducer.state_dict(), comm)
    assert_type(kept, Path)
    found = checkpoint.load(folder, comm)
    assert_type(found, checkpoint.Checkpoint)
    assert_type(found.identity, dict[str, Any])
    reducer.take_over(found.states, found.ranks)
    return found.step


def surviving(team: Team) -> int:
    reducer = ElasticAllreduce(100, team=team, density=0.1)
    return len(reducer.departures) + reducer.ranks
