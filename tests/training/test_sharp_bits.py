"""Traps of docs/guides/sharp-bits.md that no other test has: rates that fall, and numbers that are none."""

from __future__ import annotations

import pytest
import torch

from sparse_mpi.optim import DistributedOptimizer

from .loops import plain

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
