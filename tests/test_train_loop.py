"""The parts of a training job, on the ranks of a World: replicas, the loop, agreement on errors, records."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import job
from data import Images, Split
from data.batches import Batches
from loop import Outcome, Training, conclude
from metrics import Metrics, plot
from replicas import FlatGradient, average_buffers, broadcast, identical
from sparse_mpi import SparseAllreduce, SparseVector, World

few_ranks = pytest.mark.ranks(1, 2, 3, 4)


def network(seed=0):
    """A small network with batch normalisation for 2 classes of 1 x 2 x 2 pixels."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def two_classes(count):
    """Images whose upper half is brighter, or is not."""
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 1, 2, 2)).astype(np.uint8)
    return Split(images, (images[:, 0, 0].sum(1) > images[:, 0, 1].sum(1).astype(int)).astype(np.int64))


def settings(**changes):
    values = {
        "epochs": 4,
        "max_steps": None,
        "lr": 0.2,
        "lr_times_ranks": False,
        "warmup_epochs": 1,
        "milestones": [3],
        "dense_warmup": 0,
        "density_warmup": 0,
        "check_every": 0,
        "log_every": 2,
        "progress": False,
        "plot": False,
        "out": None,
    }
    return SimpleNamespace(**(values | changes))


def train(comm, args, folder=None, momentum=0.5, **options):
    """Train `network` on this rank; the outcome and the model."""
    model = network(seed=comm.rank)
    batches = Batches(Images(two_classes(240), two_classes(60), 2), 10, comm.rank, comm.size, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum, weight_decay=1e-3, fused=True)
    reducer = SparseAllreduce([p.shape for p in model.parameters()], comm=comm, **options)
    metrics = Metrics(folder if comm.rank == 0 else None)
    return Training(model, optimizer, reducer, batches, args, comm, metrics).run(), model


@few_ranks
def test_broadcast_makes_replicas_identical(ranks):
    def body(comm):
        model = network(seed=comm.rank)
        before = identical(model, comm)
        broadcast(model, comm)
        return before, identical(model, comm), model[1].weight.detach().numpy()

    before, after, weights = zip(*ranks.run(body), strict=True)
    assert all(after) and any(before) == (ranks.size == 1)
    assert all(np.array_equal(w, network(seed=0)[1].weight.detach()) for w in weights)


@pytest.mark.ranks(3)
def test_identical_sees_one_bit_on_one_rank(ranks):
    def body(comm):
        model = network()
        with torch.no_grad():
            model[4].bias[0] = -0.0 if comm.rank == 2 else 0.0
        return identical(model, comm)

    assert ranks.run(body) == [False] * 3


@few_ranks
def test_average_buffers_is_the_mean_over_ranks(ranks):
    def body(comm):
        model = network()
        model[2].running_mean += comm.rank
        average_buffers(model, comm)
        return model[2].running_mean.tolist(), int(model[2].num_batches_tracked)

    assert ranks.run(body) == [([(ranks.size - 1) / 2] * 8, 0)] * ranks.size


def forward(model):
    return model(torch.linspace(-1, 1, 20).reshape(5, 1, 2, 2)).square().sum()


@pytest.mark.parametrize("keep", [False, True])
def test_flat_gradient_is_what_autograd_writes(keep):
    model = network()
    gradient = FlatGradient(model, keep)
    seen = []
    for _ in range(2):
        gradient.clear()
        forward(model).backward()
        gradient.check()
        seen.append(gradient.flat.clone())
    assert torch.equal(seen[0], torch.cat([p.grad.reshape(-1) for p in model.parameters()]) / (1 + keep))
    assert torch.allclose(seen[1], seen[0] * (1 + keep)) and seen[0].any()


@pytest.mark.parametrize("keep", [False, True])
def test_flat_gradient_gives_the_optimizer_the_mean(keep):
    model = network()
    gradient = FlatGradient(model, keep)
    gradient.flat += 7

    def sparse(*at):
        return SparseVector(torch.tensor(at, dtype=torch.int32), torch.tensor([6.0, 3.0]), len(gradient.flat))

    for total in (sparse(1, 40), sparse(0, 40), torch.full_like(gradient.flat, 6), sparse(1, 2), sparse(2, 3)):
        with gradient.mean(total, 3):
            grads = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert torch.equal(grads * 3, total.to_dense() if isinstance(total, SparseVector) else total)
        gradient.check()
        assert (gradient.flat == 7).all() == keep


@pytest.mark.parametrize("keep", [False, True])
def test_gradients_that_were_cut_off_are_noticed(keep):
    def body(comm):
        model = network()
        reducer = SparseAllreduce(sum(p.numel() for p in model.parameters()), comm=comm, in_place=keep)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = Batches(Images(two_classes(24), two_classes(6), 2), 4, comm.rank, comm.size, seed=1)
        training = Training(model, optimizer, reducer, batches, settings(), comm, Metrics(None))
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match=r"grad of parameter 0 must be a view.*do not call zero_grad\(\)"):
            training.run()

    World(1).run(body)


@few_ranks
@pytest.mark.parametrize("algorithm", ["oktopk", "dense"])
def test_training_learns_and_replicas_stay_identical(ranks, algorithm):
    outcomes = ranks.run(lambda comm: train(comm, settings(), density=0.3, algorithm=algorithm)[0])
    assert all(outcome.identical and outcome.accuracy > 0.85 for outcome in outcomes)
    assert {o.accuracy for o in outcomes} == {outcomes[0].accuracy}
    assert {o.steps for o in outcomes} == {4 * (240 // (10 * ranks.size))}


def test_records_of_a_run_and_its_plot(tmp_path):
    args = settings(epochs=3, max_steps=11, dense_warmup=4, check_every=2, out=tmp_path / "deep" / "run")
    outcomes = World(3).run(lambda comm: train(comm, args, args.out, k=7)[0])
    assert [o.steps for o in outcomes] == [11] * 3
    records = [json.loads(line) for line in (args.out / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    epochs = [r for r in records if r["event"] == "epoch"]
    assert [r["step"] for r in steps] == [1, 3, 5, 7, 9, 11] and [r["step"] for r in epochs] == [8, 11]
    assert [r["selected"] for r in steps[:2]] == [74, 74] and max(r["selected"] for r in steps[2:]) < 20
    assert steps[0]["mb_sent"] >= 74 * 4 * 4 / 3 / 1e6
    assert epochs[1]["test_accuracy"] == outcomes[0].accuracy
    with (args.out / "metrics.jsonl").open() as file:
        rest = file.read()
    config = {"event": "config", "algo": "oktopk", "data": "x", "ranks": 3, "k": 7, "parameters": 74}
    (args.out / "metrics.jsonl").write_text(json.dumps(config) + "\n" + rest)
    assert plot(args.out).read_bytes().startswith(b"\x89PNG")


def weights(comm, in_place, algorithm, **changes):
    """The state of a model trained with SGD's momentum and weight decay."""
    args = settings(epochs=2, **changes)
    options = {"density": 0.1, "algorithm": algorithm, "in_place": in_place}
    return {name: tensor.numpy() for name, tensor in train(comm, args, **options)[1].state_dict().items()}


CHANGES = {
    "plain": {},
    "dense first": {"dense_warmup": 3},
    "checked": {"check_every": 2, "dense_warmup": 1},
    "density": {"density_warmup": (0.5,)},
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("algorithm", ["oktopk", "topkdsa", "dense"])
@pytest.mark.parametrize("changes", CHANGES)
def test_zero_copy_trains_to_the_same_bits(ranks, algorithm, changes):
    changes = CHANGES[changes]
    copying, zero_copy = (ranks.run(lambda comm, x=x: weights(comm, x, algorithm, **changes)) for x in (False, True))
    for one, other in zip(copying, zero_copy, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    "options", [{"memory": "dgc"}, {"memory": "dgc", "clip_norm": 1.0}, {"clip_norm": 1.0}], ids=repr
)
def test_training_learns_with_momentum_correction_and_clipping(ranks, options):
    args = settings(dense_warmup=4, check_every=5, lr=0.05)
    outcomes = ranks.run(lambda comm: train(comm, args, density=0.3, momentum=0.0, **options)[0])
    assert all(outcome.identical and outcome.accuracy > 0.85 for outcome in outcomes)


def test_density_falls_over_the_first_epochs(tmp_path):
    args = settings(density_warmup=(0.5, 0.25), log_every=1, out=tmp_path)
    World(2).run(lambda comm: train(comm, args, args.out, k=7)[0])
    records = [json.loads(line) for line in (args.out / "metrics.jsonl").read_text().splitlines()]
    selected = {
        epoch: {r["selected"] for r in records if r["event"] == "step" and r["epoch"] == epoch}
        for epoch in (1, 2, 3, 4)
    }
    assert selected == {1: {37}, 2: {18}, 3: {7}, 4: {7}}


def test_the_same_seed_trains_to_the_same_bits():
    def weights(comm):
        return train(comm, settings(epochs=2), density=0.1)[1][1].weight.detach().numpy()

    assert np.array_equal(World(2).run(weights)[0], World(2).run(weights)[1])


@pytest.mark.parametrize("algorithm", ["oktopk", "dense"])
def test_diverged_training_is_refused_on_all_ranks(algorithm):
    def body(comm):
        with pytest.raises(job.Refused, match="diverged in epoch 1"):
            train(comm, settings(lr=math.inf), algorithm=algorithm)

    World(2).run(body)


def test_different_replicas_are_refused_in_the_end(capsys):
    outcome = Outcome(0.5, 1.0, identical=False, steps=3, seconds=1.0, step_seconds=0.3, predicted_seconds=0.33)
    with pytest.raises(job.Refused, match="replicas differ"):
        World(1).run(lambda comm: conclude(outcome, settings(), comm, Metrics(None)))
    assert "replicas DIFFER" in capsys.readouterr().out


def test_steps_are_timed_without_the_checked_ones_and_the_dense_warm_up(monkeypatch):
    timed, usual = [], Training._usual_step
    monkeypatch.setattr(Training, "_usual_step", lambda self: timed.append(len(self.durations)) or usual(self))

    def body(comm):
        outcome, _ = train(comm, settings(max_steps=9, dense_warmup=3, check_every=2))
        assert outcome.step_seconds > 0 and outcome.predicted_seconds is None
        outcome, _ = train(comm, settings(max_steps=2, check_every=1))
        assert outcome.step_seconds is None

    World(1).run(body)
    assert timed == [3, 0]  # of steps 4 to 9 without 4, 6 and 8


@pytest.mark.ranks(2, 4)
def test_what_fails_on_one_rank_is_refused_on_all(ranks):
    def load(rank):
        if rank == 1:
            raise FileNotFoundError("no such folder")
        return rank

    def body(comm):
        with pytest.raises(job.Refused) as error:
            job.agreed(comm, lambda: load(comm.rank))
        return str(error.value), job.agreed(comm, lambda: comm.rank)

    for rank, (said, agreed) in enumerate(ranks.run(body)):
        assert ("no such folder" if rank == 1 else "rank 1") in said and agreed == rank


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [([{0, 1, 2, 3}] * 2, [2, 2]), ([{0, 1}, {2, 3}], [2, 2]), ([{5}] * 3, [1, 1, 1]), ([{0, 1, 2}], [3])],
)
def test_ranks_share_the_cpus_they_run_on(monkeypatch, cpus, threads):
    def body(comm):
        monkeypatch.setattr(job, "allowed_cpus", lambda: sorted(cpus[comm.rank]))
        return job.threads_per_rank(comm)

    assert World(len(cpus)).run(body) == threads


def test_without_tensorboard_records_are_still_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    metrics = Metrics(tmp_path)
    metrics.write("step", step=1, loss=0.5)
    metrics.close()
    assert "tensorboard is not installed" in capsys.readouterr().out
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"event": "step", "step": 1, "loss": 0.5}
