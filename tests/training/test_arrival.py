"""Adam by arrival: what has arrived is what the reduction says, and makes up for the steps that it has waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sparse_mpi import SparseVector
from sparse_mpi.algorithms import Algorithm, Bound, Reduction
from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer


@dataclass(frozen=True)
class Timetable(Algorithm):
    """Sends entry i of acc in every (i + 1)-th step, and all entries in the step ``last``, also where they are 0."""

    last: int

    def init(self, layout, k, ranks):
        return 0

    def reduce(self, acc, k, comm, state, layout, add=None):
        step = state + 1
        at = np.flatnonzero((step % np.arange(1, len(acc) + 1) == 0) | (step == self.last)).astype(np.int32)
        sent = SparseVector(at, acc[at], len(acc))
        return Reduction(sent, sent), step

    def bound(self, layout, k, ranks):
        return Bound(0, 0, 0, 0)


@pytest.mark.thin(1)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("options", [{}, {"betas": (0.0, 0.9)}, {"maximize": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_by_arrival_makes_up_for_a_wait(kind, options, zeros):
    """Entry i of a constant gradient arrives in every i-th step only, and ends within 2 % of where torch's Adam does.

    So does one that arrives as the zero that it is.
    """
    slope, last = torch.linspace(-2, 3, 40).double() * (torch.arange(40) % 3 > 0 if zeros else 1), 280
    free = {"weight_decay": 0.0} | options
    weight, reference = (torch.zeros(40, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = DistributedOptimizer(kind([weight], lr=0.03, **free), comm=NullComm(), algorithm=Timetable(last))
    plain = kind([reference], lr=0.03, **free)
    assert optimizer.param_groups[0]["betas"] == plain.param_groups[0]["betas"]
    for _ in range(last):
        for each, it in ((weight, optimizer), (reference, plain)):
            each.grad = slope.clone()
            it.step()
    assert reference[slope != 0].abs().min() > 8
    np.testing.assert_allclose(weight.detach(), reference.detach(), rtol=0.02)


def test_adam_by_arrival_goes_on_from_a_checkpoint_of_torch():
    trained = []
    for distributed in (False, True):
        weight = torch.ones(5, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for step in range(8):
            if distributed and step == 4:
                saved = optimizer.state_dict()
                optimizer = DistributedOptimizer(torch.optim.Adam([weight], lr=0.1), comm=NullComm(), algorithm="dense")
                optimizer.load_state_dict(saved)
            weight.grad = torch.sin(torch.arange(5.0) * step + 1)
            optimizer.step()
        trained.append(weight.detach().numpy())
    np.testing.assert_allclose(trained[1], trained[0], rtol=1e-5)


@pytest.mark.parametrize("momentum", ["arrival", "second-moment"])
def test_a_state_has_steps_of_arrival_to_the_last_whatever_the_type_of_weights(momentum):
    """torch gives what it loads the type of the weights, in which 1001 is no number."""

    def made():
        weight = torch.nn.Parameter(torch.zeros(40, dtype=torch.bfloat16))
        adam = torch.optim.AdamW([weight], lr=0.01)
        optimizer = DistributedOptimizer(adam, comm=NullComm(), density=0.1, momentum=momentum, algorithm="elect")
        (weight * torch.arange(40)).sum().backward()
        optimizer.step()
        return optimizer, optimizer.state[weight]

    (one, before), (other, _) = made(), made()
    before["step"] += 1000
    before["arrived"] += 1000
    other.load_state_dict(one.state_dict())
    (after,) = other.state.values()
    assert after["arrived"].dtype == torch.int32 and torch.equal(after["arrived"], before["arrived"])
    assert int(after["arrived"].max()) == 1001
