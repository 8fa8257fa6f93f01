"""`DistributedOptimizer`: steps of all ranks along one gradient, whatever the model and the training loop do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters

SMALL = 2e-3  # MB: a bucket for nearly every parameter
pytestmark = pytest.mark.ranks(1, 3, 4)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 5))


def data(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 20, generator=made), torch.randn(8, 5, generator=made)


def loss_of(model, rank: int, step: int) -> torch.Tensor:
    x, y = data(rank, step)
    return nn.functional.mse_loss(model(x), y)


def train(comm, steps: int = 4, model=None, make=torch.optim.SGD, **options) -> nn.Module:
    """A plain training loop; options are `DistributedOptimizer`'s."""
    model = model or net()
    optimizer = DistributedOptimizer(make(model.parameters(), lr=0.1), model.named_parameters(), comm=comm, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step).backward()
        optimizer.step()
    return model


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).numpy()


def reference(ranks: int, steps: int = 4, make=torch.optim.SGD) -> np.ndarray:
    """The same training on the mean of all losses, in one process."""
    model = net()
    optimizer = make(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(ranks)) / ranks).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [{"compression": "dense"}, {"density": 1.0, "bucket_cap_mb": SMALL}], ids=str)
def test_dense_is_training_on_the_mean_loss(ranks, make, options):
    expected = reference(ranks.size, make=make)
    for model in ranks.run(lambda comm: train(comm, make=make, **options)):
        np.testing.assert_allclose(weights(model), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"feedback": "dgc"}], ids=str)
def test_overlap_changes_no_bit_and_replicas_stay_equal(ranks, options):
    options |= {"density": 0.05, "bucket_cap_mb": SMALL}
    early, late = (ranks.run(lambda comm, o=o: weights(train(comm, overlap=o, **options))) for o in (True, False))
    assert all(np.array_equal(one, early[0]) for one in early + late)
    assert not np.allclose(early[0], weights(net()))


def test_in_place_changes_no_bit(ranks):
    copied, shared = (
        ranks.run(lambda comm, o=o: weights(train(comm, density=0.05, bucket_cap_mb=SMALL, in_place=o)))
        for o in (False, True)
    )
    assert np.array_equal(copied[0], shared[0])


@pytest.mark.parametrize("clear", ["optimizer", "model", "zeros"])
def test_in_place_however_gradients_are_cleared(ranks, clear):
    """Zeroing what `.grad` shows after a step is zeroing the mean, never the residual."""

    def run(comm):
        model = net()
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), comm=comm, density=0.05, in_place=True
        )
        for step in range(4):
            loss_of(model, comm.rank, step).backward()
            optimizer.step()
            if clear == "optimizer":
                optimizer.zero_grad()
                optimizer.zero_grad(set_to_none=False)
            elif clear == "model":
                model.zero_grad()
            else:
                model.zero_grad(set_to_none=False)
        return weights(model)

    expected = ranks.run(lambda comm: weights(train(comm, density=0.05)))[0]
    assert all(np.array_equal(one, expected) for one in ranks.run(run))


def test_nothing_is_lost(ranks):
    """Law 2 over a run: what was applied and what is still owed are all gradients there were."""

    def run(comm):
        model, applied, brought = net(), 0.0, 0.0
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.0), comm=comm, op="sum", density=0.02, bucket_cap_mb=SMALL
        )
        optimizer.reduction.check = True
        for step in range(5):
            optimizer.zero_grad()
            brought += weights_of_gradients(torch.autograd.grad(loss_of(model, comm.rank, step), model.parameters()))
            loss_of(model, comm.rank, step).backward()
            optimizer.step()
            applied += weights_of_gradients(p.grad for p in model.parameters())
        owed = {p: r for b in optimizer.reduction.buckets for p, r in zip(b.parameters, residuals(b), strict=True)}
        return applied, brought, np.concatenate([owed[p] for p in model.parameters()])

    results = ranks.run(run)
    brought, owed = (sum(one[i] for one in results) for i in (1, 2))
    np.testing.assert_allclose(results[0][0] + owed, brought, rtol=1e-4, atol=1e-5)


def weights_of_gradients(gradients) -> np.ndarray:
    return torch.cat([g.detach().flatten() for g in gradients]).numpy().copy()


def residuals(bucket) -> list[np.ndarray]:
    return np.split(bucket.reducer.residual, np.cumsum([p.numel() for p in bucket.parameters])[:-1])


def test_k_is_for_all_parameters_together():
    def selected(cap):
        model = net()
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), comm=NullComm(2), algorithm="oktopk", k=100, bucket_cap_mb=cap
        )
        loss_of(model, 0, 0).backward()
        optimizer.step()
        return optimizer.reduction.report.selected

    assert selected(None) == 100
    assert 95 <= selected(SMALL) <= 105


def test_passes_are_added_up_before_they_are_reduced(ranks):
    def run(comm):
        model = net()
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1),
            comm=comm,
            algorithm="dense",
            backward_passes_per_step=2,
            bucket_cap_mb=SMALL,
        )
        for step in range(3):
            for half in range(2):
                (loss_of(model, comm.rank, 2 * step + half) / 2).backward()
                assert optimizer.reduction.under_way == (half == 1 and step > 0)  # the first shows kinds of gradients
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        sum(loss_of(model, r, 2 * step + h) for r in range(ranks.size) for h in range(2)).div(2 * ranks.size).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one in ranks.run(run):
        np.testing.assert_allclose(one, weights(model), rtol=1e-4, atol=1e-5)


def test_parameters_and_optimizer_state_come_from_the_root(ranks):
    def run(comm):
        model = net(comm.rank)
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0 + comm.rank)
        loss_of(model, comm.rank, 0).backward()
        optimizer.step()
        root = comm.size - 1
        broadcast_parameters(model.state_dict(), root, comm)
        broadcast_optimizer_state(optimizer, root, comm)
        state = optimizer.state_dict()
        return weights(model), state["param_groups"][0]["lr"], state["state"][0]["exp_avg"].numpy()

    for w, lr, average in (results := ranks.run(run)):
        assert np.array_equal(w, results[-1][0]) and lr == ranks.size and np.array_equal(average, results[-1][2])


def test_other_models_are_not_broadcast(ranks):
    def run(comm):
        model = nn.Linear(3, 4 if comm.rank else 5, dtype=torch.bfloat16)
        if comm.size == 1:
            return broadcast_parameters(model.named_parameters(), comm=comm)
        with pytest.raises(ValueError, match="weight"):
            broadcast_parameters(model.named_parameters(), comm=comm)

    ranks.run(run)


def test_state_resumes_to_the_bit(ranks):
    def run(comm):
        def made(model):
            return DistributedOptimizer(
                torch.optim.SGD(model.parameters(), 0.1), comm=comm, density=0.05, bucket_cap_mb=SMALL
            )

        def steps(model, optimizer, numbers):
            for step in numbers:
                optimizer.zero_grad()
                loss_of(model, comm.rank, step).backward()
                optimizer.step()
            return weights(model)

        model = net()
        optimizer = made(model)
        steps(model, optimizer, range(3))
        saved = optimizer.reduction.state_dict()
        again = net()
        again.load_state_dict(model.state_dict())
        resumed = made(again)
        resumed.reduction.load_state_dict(saved)
        with pytest.raises(ValueError, match=r"must hold \d buckets, got 1"):
            resumed.reduction.load_state_dict({"buckets": saved["buckets"][:1]})
        return steps(model, optimizer, range(3, 6)), steps(again, resumed, range(3, 6))

    assert all(np.array_equal(*both) for both in ranks.run(run))
