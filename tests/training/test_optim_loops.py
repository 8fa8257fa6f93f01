"""What training loops do with an optimizer besides stepping: clipping, closures, scalers, models that change."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.bucket import cut

from .loops import equal, loss_of, weights, wrapped
from .loops import wide_net as net

pytestmark = pytest.mark.ranks(1, 3)


def test_buckets_are_cut_from_the_end_and_the_last_is_small():
    p = [nn.Parameter(torch.zeros(n)) for n in (2, 2, 10, 20, 30, 5)] + [nn.Parameter(torch.zeros(3).double())]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 4 * 35)] == [[3], [30, 5], [10, 20], [2, 2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, 1)] == [[3], [5], [30], [20], [10], [2], [2]]
    assert [[q.numel() for q in bucket] for bucket in cut(p, float("inf"))] == [[3], [2, 2, 10, 20, 30, 5]]
    assert cut([], 1) == [] and [len(bucket) for bucket in cut(p[:1], 1)] == [1]


def test_it_is_still_the_optimizer_it_was():
    model = net()
    plain = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1.0}], 0.1)
    early = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    optimizer = DistributedOptimizer(plain, comm=NullComm(2), compression="dense")
    late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    loss_of(model, 0, 0).backward()
    optimizer.step()
    late.step()
    early.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.25] and steps == [1]
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert steps == [1, 1]


@pytest.mark.parametrize("skip", [True, False])
def test_gradients_are_clipped_after_they_are_reduced_and_not_reduced_again(ranks, skip):
    def run(comm):
        model = net()
        optimizer = wrapped(model, comm)
        norms = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, comm.rank, step).backward()
            optimizer.synchronize()
            sent = optimizer.reduction.comm.traffic.messages
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
            kept = [p.grad.clone() for p in model.parameters()]
            with optimizer.skip_synchronize() if skip else nullcontext():
                optimizer.step()
            assert optimizer.reduction.comm.traffic.messages == sent
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True))
        return np.concatenate([weights(model), norms])

    assert equal(ranks.run(run))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "max"}, "op must be one of"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be at least 1, got 0"),
        ({"bucket_cap_mb": 0}, r"bucket_cap_mb must be in \(0, inf\]"),
        ({"density": 2.0}, "density must be in"),
        ({"k": 0, "density": None}, "k must be"),
        ({"compression": "zip"}, "zip"),
        ({"named_parameters": [("a", nn.Parameter(torch.zeros(3)))]}, "must have all 6 parameters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.under_mpi(3)
def test_bad_arguments(ranks, options, message):
    """On one rank of several: all raise."""

    def run(comm):
        bad = options if comm.rank == comm.size - 1 else {}
        with pytest.raises(ValueError, match=message if bad else "all ranks|" + message):
            wrapped(net(), comm, **bad)

    ranks.run(run)


def test_only_torch_optimizers_once():
    with pytest.raises(TypeError, match=r"plain torch\.optim\.Optimizer, got SGD"):
        DistributedOptimizer(wrapped(net(), NullComm(2)), comm=NullComm(2))
    with pytest.raises(ValueError, match="got 'a' twice"):
        p = nn.Parameter(torch.zeros(3))
        DistributedOptimizer(torch.optim.SGD([p], 0.1), [("a", p), ("a", p)], comm=NullComm(2))
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="is the model frozen"):
        wrapped(model, NullComm(2))


@pytest.mark.ranks(3)
def test_ranks_agree_on_whether_to_overlap(ranks):
    """Before a communicator is made that waits in another way than that of the others."""

    def run(comm):
        with pytest.raises(ValueError, match="overlap=False"):
            wrapped(net(), comm, overlap=comm.rank != 1)

    ranks.run(run)


def test_a_loss_scaler_skips_a_step_on_all_ranks_and_leaves_no_trace(ranks):
    def run(comm, scaled, overflow=None):
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        optimizer = wrapped(model, comm, scaler=scaler if scaled else None)
        history = []
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, step)
            if step == overflow and comm.rank == comm.size - 1:
                loss = loss * torch.tensor(float("inf"))
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            owed = np.concatenate([bucket.reducer.residual for bucket in optimizer.reduction.buckets])
            history.append((weights(model), scaler.get_scale(), owed.copy()))
        return history

    plain, scaled = ([one[-1][0] for one in ranks.run(lambda comm, s=s: run(comm, s))] for s in (False, True))
    assert equal(scaled)
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-4, atol=1e-6)
    over = ranks.run(lambda comm: run(comm, True, overflow=2))
    assert equal([one[-1][0] for one in over])
    for rank in over:  # what is owed stays as it was
        assert np.array_equal(rank[1][2], rank[2][2]) and not np.array_equal(rank[2][2], rank[3][2])
    (before, _, _), (after, halved, _), (later, _, _) = over[0][1], over[0][2], over[0][3]
    assert np.array_equal(before, after) and halved == 2.0**9  # a step that was skipped, on every rank
    assert np.isfinite(later).all() and not np.array_equal(after, later)  # and the next is not


@pytest.mark.parametrize("how", ["bfloat16", "float16", "autocast"])
def test_replicas_in_half_precision_stay_equal(ranks, how):
    half = None if how == "autocast" else getattr(torch, how)

    def run(comm):
        model = net().to(half)
        optimizer = wrapped(model, comm, density=0.5)
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half is None):
                loss = model(torch.ones(2, 20, dtype=half) * (1 + comm.rank + step)).pow(2).mean()
            loss.backward()
            optimizer.step()
        assert model[0].weight.grad.dtype == (half or torch.float32)
        return weights(model)

    results = ranks.run(run)
    assert equal(results) and not np.array_equal(results[0], weights(net().to(half)))
