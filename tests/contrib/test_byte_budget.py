"""A `ByteBudget` keeps reducers and optimizers to what a rank may send, with the same density on all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.contrib import byte_budget
from sparse_mpi.contrib.byte_budget import ByteBudget, byte_goal

N = 20_000
GOALS = {
    "5MB/s": (5e6, None, False),
    "800kbit/s": (1e5, None, False),
    "1.5GiB/s": (1.5 * 2**30, None, False),
    " .2 MB / step": (2e5, 1, False),
    "40GB/10000steps": (4e10, 10_000, True),
}
BAD = {
    "5MB": "must be a number above 0 with a unit such as '5MB/s'",
    "-5MB/s": "must be a number above 0 with a unit",
    "5mB/s": "must be a number above 0 with a unit",
    "0MB/s": "must be above 0",
    "5MB/0steps": "must be above 0, for at least one step",
}


def spent(comm, budget, steps, algorithm="oktopk"):
    """The bytes that each step of a reducer has sent on this rank, and its density."""
    reducer = SparseAllreduce(N, comm=comm, algorithm=algorithm)
    random, found = np.random.default_rng(comm.rank), []
    for _ in range(steps):
        density = budget.density
        reducer.step(random.standard_normal(N, np.float32), density=density)
        found.append((reducer.report.traffic.sent + reducer.report.traffic.control, density))
        assert budget(reducer.report) == budget.density
    return found


@pytest.mark.parametrize(("text", "goal"), GOALS.items())
def test_a_text_is_read(text, goal):
    assert byte_goal(text) == goal


@pytest.mark.parametrize(("text", "said"), BAD.items())
def test_a_text_that_says_nothing_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        byte_goal(text)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("budget", ["20kB/step", "1200kB/60steps"])
def test_what_is_sent_meets_a_budget_of_steps(ranks, budget):
    """By the rank that sends most; all ranks take the same densities."""
    found = np.array(ranks.run(lambda comm: spent(comm, ByteBudget(budget, comm), 60)))
    assert (found[:, :, 1] == found[0, :, 1]).all()
    if ranks.size > 1:
        assert found[:, :, 0].max(axis=0).sum() == pytest.approx(60 * 20e3, rel=0.05)


def test_what_is_sent_meets_a_rate_while_the_link_changes(monkeypatch):
    """Steps compute for 0.1 s, then send over 1 MB/s, or a tenth of that in the middle; an evaluation earns nothing."""
    clock = {"now": 0.0}
    monkeypatch.setattr(byte_budget, "perf_counter", lambda: clock["now"])

    def body(comm):
        budget, reducer = ByteBudget("60kB/s", comm), SparseAllreduce(N, comm=comm)
        random, sent, began = np.random.default_rng(comm.rank), 0, 0.0
        for step in range(150):
            reducer.step(random.standard_normal(N, np.float32), density=budget.density)
            took = reducer.report.traffic.sent + reducer.report.traffic.control
            comm.barrier()
            if comm.rank == 0:
                clock["now"] += 0.1 + took / (1e5 if 50 <= step < 100 else 1e6) + 60 * (step == 120)
            comm.barrier()
            budget(reducer.report)
            sent, began = (sent + took, began) if step else (0, clock["now"])
        return sent / (clock["now"] - began - 60)

    for rate in World(2).run(body):
        assert rate == pytest.approx(60e3, rel=0.05)


@pytest.mark.ranks(1, 3)
def test_a_density_is_never_above_the_largest_and_a_debt_is_repaid(ranks):
    def body(comm):
        rich, poor = ByteBudget("1GB/step", comm, largest=0.05), ByteBudget("1B/step", comm)
        return spent(comm, rich, 5)[-1][1], spent(comm, poor, 20)[-1][1], poor.credit

    for most, least, credit in ranks.run(body):
        if ranks.size > 1:
            assert (most, least) == (0.05, pytest.approx(byte_budget.LEAST)) and credit < 0


def test_a_resumed_run_goes_on_with_its_account():
    def body(comm):
        first, second = (ByteBudget("20kB/step", comm) for _ in range(2))
        spent(comm, first, 10)
        second.load_state_dict(first.state_dict())
        return first, second

    for first, second in World(2).run(body):
        assert (second.credit, second.density) == (first.credit, first.density) and first.credit != 0
