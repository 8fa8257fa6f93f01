"""Traps of docs/guides/sharp-bits.md that no other test has: rates that fall, and numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce
from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer

from .loops import SMALL, adamw, loss_of, nesterov, own, plain, train, weights
from .loops import wide_net as net

N, DROP = 20, 10  # weights, and steps until the rate falls to 0


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    ("density", "flush", "moved"),
    [(1.0, False, N * DROP), (1 / N, False, DROP * (DROP + 1) / 2), (1 / N, True, N * DROP)],
)
def test_an_entry_is_applied_at_the_rate_of_the_step_in_which_it_arrives(ranks, density, flush, moved):
    """Gradients of 1 at a rate of 1: in step t the entry arrives that has waited t steps."""

    def body(comm):
        parameter = torch.nn.Parameter(torch.zeros(N))
        optimizer = DistributedOptimizer(plain([parameter]), density=density, comm=comm, algorithm="topka")
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, DROP, gamma=0.0)
        for step in range(2 * DROP):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            if flush and step == DROP - 1:
                optimizer.flush()
            schedule.step()
        return -parameter.sum().item()

    assert ranks.run(body) == [moved] * ranks.size


@pytest.mark.parametrize("schedule", ["OneCycleLR", "CyclicLR"])
def test_a_schedule_that_changes_momentum_is_refused_unless_it_leaves_it(schedule):
    def steps(**options):
        parameter = torch.nn.Parameter(torch.zeros(N))
        sgd = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        optimizer = DistributedOptimizer(sgd, comm=NullComm())
        shape = {"total_steps": 10} if schedule == "OneCycleLR" else {"base_lr": 0.1}
        cycle = getattr(torch.optim.lr_scheduler, schedule)(optimizer, max_lr=0.2, **shape, **options)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            cycle.step()

    steps(cycle_momentum=False)
    with pytest.raises(ValueError, match=r"momentum must stay 0\.9, as the error feedback has taken momentum over"):
        steps()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("make", [plain, nesterov, adamw])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_on_one_rank_is_raised_on_all_before_weights_move(ranks, make, bad):
    def body(comm):
        model = net()
        optimizer = DistributedOptimizer(make(model.parameters()), comm=comm, nonfinite="raise", bucket_cap_mb=SMALL)
        before = train(model, optimizer, own(comm.rank), range(2))
        optimizer.zero_grad()
        with pytest.raises(FloatingPointError, match="total has .* NaN or Inf"):
            (loss_of(model, comm.rank, 2) * (bad if comm.rank == comm.size - 1 else 1)).backward()
            optimizer.step()
        assert np.array_equal(before, weights(model))

    ranks.run(body)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(("count", "summed", "waiting"), [(1, 1, 0), (1000, 10, 990)])
def test_what_is_not_finite_is_in_every_sum_and_beyond_k_in_the_residual_of_its_rank(ranks, count, summed, waiting):
    def body(comm):
        last = comm.rank == comm.size - 1
        reducer, gradient = SparseAllreduce(1000, k=10, comm=comm), np.ones(1000, np.float32)
        gradient[: count * last] = np.nan
        total = reducer.step(gradient)
        assert np.isnan(total.values).sum() == summed
        assert np.isnan(reducer.residual).sum() == waiting * last

    ranks.run(body)
