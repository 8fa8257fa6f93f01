"""--plan: what is profiled, when a new plan takes over, which plans are rejected."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi import SparseVector
from sparse_mpi.algorithms.hybrid import Hybrid
from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan, PlannedPart
from sparse_train.ranks.job import JobError
from sparse_train.records.metrics import Stamps
from sparse_train.trainer.planning import Planning, Profiler

from .small_program import PROGRAM, QUIET


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))


TENSORS = tuple((name, tuple(p.shape)) for name, p in network().named_parameters())
PLAN = Plan("by hand", TENSORS, 2, 0.05, (PlannedPart("topka", (0, 2), 37), PlannedPart("dense", (1, 3), 35)), 0.1)


def settings(**changes):
    """Return the options of --plan auto, but for these changes."""
    args = PROGRAM.parse(["--plan", "auto", "--density", "0.05", "--profile-steps", "3", *QUIET])
    return SimpleNamespace(**vars(args) | changes)


def test_gradients_are_ready_from_the_last_layer_to_the_first():
    model = network()
    profiler = Profiler(model)
    for _ in range(2):
        loss = model(torch.ones(3, 20)).sum()
        start = perf_counter()
        loss.backward()
        end = perf_counter()
        profiler.add(Stamps(start - 0.5, start, end, end + 0.1, end + 0.35))
    profiler.close()
    assert profiler.steps == 2
    before, backward, update, *ready = np.median(profiler._steps, axis=0)
    assert before == pytest.approx(0.5) and update == pytest.approx(0.25) and backward > 0
    assert 0 < max(ready[2:]) <= min(ready[:2]) <= backward
    model(torch.ones(3, 20)).sum().backward()
    assert profiler.steps == 2


@pytest.mark.ranks(1, 3)
def test_the_plan_takes_over_with_what_the_first_steps_remember(ranks, tmp_path):
    def body(comm):
        model, args = network(), settings(out=tmp_path)
        planning = Planning(model, args, comm, comm)
        optimizer = planning.distribute(torch.optim.SGD(model.parameters(), 0.1))
        (bucket,) = optimizer.reduction.buckets
        first, optimizer.reduction.check = bucket.reducer, True
        for step in range(6):
            optimizer.zero_grad()
            model(torch.full((3, 20), 0.1 * (comm.rank + 1))).sum().backward()
            optimizer.step()
            stamps = Stamps(step, step + 0.1, step + 0.3, step + 0.4, step + 0.5)
            assert planning.after(stamps, optimizer.reduction) == (step == 2)
            assert bucket.reducer is first and isinstance(first.algorithm, Hybrid) == (step >= 2)
        if comm.rank == 0:
            profile = store.load(tmp_path / "profile.json", store.Profile)
            assert store.load(tmp_path / "plan.json") == planning.plan and planning.plan.tensors == TENSORS
            assert (profile.before, profile.backward) == (pytest.approx(0.1), pytest.approx(0.2))
            assert profile.update == pytest.approx(0.1) and profile.ranks == comm.size
        return store.dumps(planning.plan)

    plans = ranks.run(body)
    assert all(plan == plans[0] for plan in plans)


@pytest.mark.ranks(2)
def test_a_plan_file_decides_what_reduces_and_how_much(ranks, tmp_path):
    store.save(PLAN, tmp_path / "plan.json")

    def body(comm):
        args = settings(algo="plan", plan=tmp_path / "plan.json", density=None)
        model = network()
        planning = Planning(model, args, comm, comm)
        optimizer = planning.distribute(torch.optim.SGD(model.parameters(), 0.1))
        (bucket,) = optimizer.reduction.buckets
        assert planning.plan == PLAN and args.density == 0.05 and bucket.reducer.k == round(0.05 * 785)
        optimizer.reduction.check = True
        model(torch.full((3, 20), 0.1 * (comm.rank + 1))).sum().backward()
        (total,) = optimizer.synchronize()
        assert isinstance(total, SparseVector) and optimizer.reduction.report.selected == 37 + 35

    ranks.run(body)


SPOILT = {
    "another number of ranks": (lambda text: text, 3, "plan must be for 3 ranks"),
    "corrupt": (lambda text: text[: len(text) // 2], 2, "must be JSON"),
    "with overlap": (lambda text: store.dumps(replace(PLAN, overlap=True)), 2, "a plan without overlap"),
    "altered": (lambda text: text.replace('"density": 0.05', '"density": 0.06'), 2, "was altered"),
}


@pytest.mark.parametrize("case", SPOILT)
@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
@pytest.mark.under_mpi(3)
def test_plans_that_cannot_be_followed_are_refused_on_every_rank(ranks, tmp_path, case):
    spoil, wanted, message = SPOILT[case]
    if ranks.size != wanted:
        pytest.skip(f"is about {wanted} ranks")
    file = tmp_path / f"plan-{ranks.size}.json"
    file.write_text(spoil(store.dumps(PLAN)))

    def body(comm):
        with pytest.raises(JobError, match=message):
            Planning(network(), settings(algo="plan", plan=file), comm, comm)

    ranks.run(body)
