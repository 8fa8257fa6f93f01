"""--plan: which plan is followed, and which plans are rejected."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from sparse_mpi import SparseVector
from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan, PlannedPart
from sparse_train.ranks.job import JobError
from sparse_train.trainer.planning import Planning

from ..training.loops import net
from .small_program import PROGRAM, QUIET

network = partial(net, 0, (20, 30, 5))
TENSORS = tuple((name, tuple(p.shape)) for name, p in network().named_parameters())
PARTS = PlannedPart("dense", (1, 3)), PlannedPart("topka", (0, 2), 37 / 39)
PLAN = Plan(dict(TENSORS), 2, 0.05, "partial", PARTS, {"dense": 0.2, "partial": 0.1})


def settings(**changes):
    args = PROGRAM.parse(["--plan", "auto", "--density", "0.05", *QUIET])
    return SimpleNamespace(**vars(args) | changes)


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
        optimizer.reduction.check_every = True
        model(torch.full((3, 20), 0.1 * (comm.rank + 1))).sum().backward()
        (total,) = optimizer.synchronize()
        assert isinstance(total, SparseVector) and optimizer.reduction.report.selected == 37 + 35

    ranks.run(body)


@pytest.mark.ranks(3)
def test_a_plan_that_cannot_be_followed_is_refused_on_every_rank(ranks, tmp_path):
    store.save(PLAN, tmp_path / "plan.json")

    def body(comm):
        with pytest.raises(JobError, match="plan must be for 3 ranks"):
            Planning(network(), settings(algo="plan", plan=tmp_path / "plan.json"), comm, comm)

    ranks.run(body)
