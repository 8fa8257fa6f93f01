"""What holds however gradients are reduced: parameters without elements, of other types, and copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo

from .loops import equal, train, weights

pytestmark = pytest.mark.ranks(2, 3)


class Parameters(nn.Module):
    """Parameters of these shapes and types, and a loss that knows its rank."""

    def __init__(self, *shapes: tuple[int, ...], odd: torch.dtype = torch.float32) -> None:
        super().__init__()
        # Of an odd type are those without elements
        kinds = [odd if 0 in shape else torch.float32 for shape in shapes]
        self.all = nn.ParameterList(nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(shapes, kinds, strict=True))

    def loss(self, rank: int) -> torch.Tensor:
        return sum(((p.float() - rank) ** 2).sum() for p in self.all)


SHAPES = {
    "between": ((5,), (0, 3), (4,)),
    "first and last": ((0,), (6,), (2, 0)),
    "alone": ((0, 3),),
}


def by_optimizer(comm, model, **options):
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.all], 0.1)
    return DistributedOptimizer(optimizer, model.named_parameters(), comm=comm, density=0.5, **options)


def trained(comm, model, optimizer, steps) -> np.ndarray:
    return train(model, optimizer, lambda model, _: model.loss(comm.rank), range(steps))


@pytest.mark.parametrize("odd", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("cap", [None, 1e-6])
@pytest.mark.parametrize("shapes", SHAPES)
def test_parameters_without_elements_are_no_concern_of_the_optimizers(ranks, shapes, cap, odd):
    def body(comm):
        model = Parameters(*SHAPES[shapes], odd=odd)
        optimizer = by_optimizer(comm, model, bucket_cap_mb=cap)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(0, 2, dtype=odd))]})
        trained(comm, model, optimizer, 5)
        optimizer.flush()
        again = by_optimizer(comm, copy.deepcopy(model))
        again.reduction.load_state_dict(optimizer.reduction.state_dict())
        return weights(model)

    assert equal(ranks.run(body))


@pytest.mark.parametrize("fragments", [1, 2, 3])
@pytest.mark.parametrize("shapes", ["between", "first and last"])
def test_parameters_without_elements_are_no_concern_of_local_steps(ranks, shapes, fragments):
    def body(comm):
        model = Parameters(*SHAPES[shapes], odd=torch.bfloat16)
        inner, outer = (torch.optim.SGD(model.parameters(), rate) for rate in (0.1, 1.0))
        DiLoCo(model, inner, outer, 6, comm=comm, density=0.5, fragments=fragments)
        return trained(comm, model, inner, 13).sum()

    moved = ranks.run(body)
    assert np.isfinite(moved).all() and len({round(one) for one in moved}) <= ranks.size


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("door", ["optimizer", "optimizer without names", "later group", "unfrozen", "local"])
def test_complex_parameters_are_refused_by_name_on_all_ranks(ranks, door, dtype):
    def body(comm):
        model = nn.Linear(3, 3, dtype=dtype)
        named = dict(model.named_parameters())
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        first = nn.Parameter(torch.ones(3))
        if door in ("later group", "unfrozen"):
            model.requires_grad_(door == "later group")
            sgd = torch.optim.SGD([first, *(named.values() if door == "unfrozen" else ())], 0.1)
            named = {"first": first} | (named if door == "unfrozen" else {})
            DistributedOptimizer(sgd, named.items(), comm=comm)
            if door == "later group":
                sgd.add_param_group({"params": [model.weight]})
            model.requires_grad_(True)
        name = "parameter 0" if door.endswith("names") else "parameter 1" if door == "later group" else "weight"
        with pytest.raises(TypeError, match=rf": {name} must be of dtype float32.*got complex"):
            if door.startswith("optimizer"):
                DistributedOptimizer(sgd, None if door.endswith("names") else named.items(), comm=comm)
            elif door == "local":
                DiLoCo(model, sgd, torch.optim.SGD(model.parameters(), 1.0), 2, comm=comm)
            else:
                sgd.step()

    ranks.run(body)


def test_what_belongs_to_its_ranks_is_not_copied(ranks):
    def body(comm):
        optimizer = by_optimizer(comm, Parameters((3,)))
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="GradientReduction must not be copied or pickled.*save its state"):
                way(optimizer.reduction)
        assert not hasattr(copy.deepcopy(optimizer), "reduction")

    ranks.run(body)
