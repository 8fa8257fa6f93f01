"""What training loops do with an optimizer besides stepping: clipping, closures, models that change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.bucket import cut

pytestmark = pytest.mark.ranks(1, 3)


def net(width: int = 30) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 4))


def loss_of(model, rank: int, step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return model(torch.randn(8, 10, generator=made)).pow(2).mean()


def weights(model) -> np.ndarray:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).numpy()


def wrapped(model, comm, make=torch.optim.SGD, lr=0.1, **options):
    options = {"density": 0.1, "bucket_cap_mb": 5e-4} | options
    return DistributedOptimizer(make(model.parameters(), lr=lr), comm=comm, **options)


def equal(results) -> bool:
    return all(np.array_equal(one, results[0]) for one in results)


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


def test_gradients_are_clipped_after_they_are_reduced(ranks):
    def run(comm):
        model = net()
        optimizer = wrapped(model, comm)
        norms = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, comm.rank, step).backward()
            optimizer.synchronize()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
            kept = [p.grad.clone() for p in model.parameters()]
            with optimizer.skip_synchronize():
                optimizer.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True))
        return np.concatenate([weights(model), norms])

    assert equal(ranks.run(run))


def test_step_after_synchronize_reduces_nothing_again(ranks):
    def run(comm):
        model = net()
        optimizer = wrapped(model, comm)
        loss_of(model, comm.rank, 0).backward()
        optimizer.synchronize()
        once = optimizer.reduction.comm.traffic.messages
        optimizer.step()
        return optimizer.reduction.comm.traffic.messages - once

    assert ranks.run(run) == [0] * ranks.size


def test_a_closure_is_reduced_each_time_it_is_called(ranks):
    def run(comm):
        model = net()
        optimizer = wrapped(model, comm, torch.optim.LBFGS, lr=0.5, compression="dense", density=None)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, comm.rank, 0)
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure).detach()) for _ in range(2)]
        assert losses[1] < losses[0]
        return weights(model)

    assert equal(ranks.run(run))


def test_parameters_that_a_rank_does_not_use(ranks):
    """Every rank takes another way through the model, one of them none at all."""

    def run(comm):
        model = nn.ModuleList(net() for _ in range(3))
        optimizer = wrapped(model, comm, density=1.0)
        for step in range(3):
            optimizer.zero_grad()
            if (comm.rank + step) % 3 < 2:
                loss_of(model[(comm.rank + step) % 3], comm.rank, step).backward()
            optimizer.step()
        return weights(model)

    results = ranks.run(run)
    assert equal(results) and not np.array_equal(results[0], weights(nn.ModuleList(net() for _ in range(3))))


def test_parameters_that_freeze_thaw_and_appear(ranks):
    def run(comm):
        model = net()
        head = nn.Linear(4, 2)
        nn.init.constant_(head.weight, 0.5)
        nn.init.zeros_(head.bias)
        model[0].weight.requires_grad_(False)
        frozen = model[0].weight.clone()
        optimizer = wrapped(model, comm, density=1.0)
        buckets = len(optimizer.reduction.buckets)

        def step(number, whole):
            optimizer.zero_grad()
            loss_of(whole, comm.rank, number).backward()
            optimizer.step()

        step(0, model)
        assert torch.equal(model[0].weight, frozen)
        model[0].weight.requires_grad_(True)
        step(1, model)
        assert not torch.equal(model[0].weight, frozen) and len(optimizer.reduction.buckets) == buckets + 1
        model[2].weight.requires_grad_(False)
        kept = model[2].weight.clone()
        optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.2})
        whole = nn.Sequential(model, head)
        step(2, whole)
        assert torch.equal(model[2].weight, kept) and model[2].weight.grad is None
        return weights(whole)

    assert equal(ranks.run(run))


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD], ids=lambda make: make.__name__)
def test_sparse_gradients_stay_sparse(ranks, make):
    """Also on a rank that has none in the first step; the same as dense ones."""

    def run(comm, sparse):
        torch.manual_seed(0)
        table = nn.Embedding(50, 4, sparse=sparse)
        other = make if sparse else {torch.optim.SparseAdam: torch.optim.Adam}.get(make, make)
        optimizer = wrapped(table, comm, other, density=1.0)
        for step in range(3):
            optimizer.zero_grad()
            if comm.rank or step or comm.size == 1:
                table(torch.tensor([1, 7, 7, 10 + comm.rank])).pow(2).sum().backward()
            optimizer.step()
            assert table.weight.grad.is_sparse == sparse
        return weights(table)

    sparse = ranks.run(lambda comm: run(comm, True))
    assert equal(sparse)
    if make is torch.optim.SGD:
        np.testing.assert_allclose(sparse[0], ranks.run(lambda comm: run(comm, False))[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "max"}, "op must be one of"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be at least 1, got 0"),
        ({"bucket_cap_mb": 0}, r"bucket_cap_mb must be in \(0, inf\]"),
        ({"density": 2.0}, "density must be in"),
        ({"k": 0, "density": None}, "k must be"),
        ({"compression": "zip"}, "zip"),
        ({"in_place": True, "scaler": torch.amp.GradScaler("cpu")}, "in_place must be False with a scaler"),
        ({"named_parameters": [("a", nn.Parameter(torch.zeros(3)))]}, "must have all 4 parameters"),
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


def test_a_trace_of_every_bucket():
    model = net()
    optimizer = wrapped(model, NullComm(2))
    tracer = optimizer.reduction.record()
    for step in range(2):
        loss_of(model, 0, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(tracer.buckets) == len(optimizer.reduction.buckets) > 1
    for one in tracer.buckets:
        assert one.span.given <= one.span.began <= one.calls[0][0] <= one.calls[-1][1] <= one.span.ended
        assert one.span.began <= one.selections[0][0] <= one.selections[0][1] <= one.span.ended


@pytest.mark.ranks(3)
def test_ranks_agree_on_whether_to_overlap(ranks):
    """Before a communicator is made that waits in another way than that of the others."""

    def run(comm):
        with pytest.raises(ValueError, match="overlap=False"):
            wrapped(net(), comm, overlap=comm.rank != 1)

    ranks.run(run)
