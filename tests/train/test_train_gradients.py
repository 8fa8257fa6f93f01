"""Recording gradients of a training run, for `bench volume` and `trace`; and the benchmark of throughput."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import gradients as recording
from sparse_mpi.__main__ import main
from sparse_mpi.algorithms.powersgd import PowerSGD
from sparse_mpi.comm.world import World
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi.predict.models import vgg16
from sparse_mpi.sparse import Layout
from sparse_mpi_bench.analysis.gradients import make

from ..launch import launch, needs_mpi

TINY = ["--tiny", "--threads", "1", "--no-progress"]


def first_gradient(args, comm):
    """Of the weights of rank 0 on this rank's first batch."""
    torch.manual_seed(args.options.seed)
    task = args.task.make(args.options, comm)
    broadcast_parameters(task.model.state_dict(), comm=comm)
    loss, _ = task.forward_and_loss(next(iter(task.train(0))))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(task.model.parameters()))]).numpy()


def test_every_ranks_gradients_of_the_chosen_steps_are_there(tmp_path, capsys):
    file = tmp_path / "deep" / "g.npz"
    args = recording.parse(
        [*TINY, "--record-steps", "1", "3", "--save", str(file), "--algo", "topka", "--density", "0.1"]
    )
    World(2).run(lambda comm: recording.record(args, comm))
    assert "steps 1, 3 of 2 ranks, 232,130 elements each" in capsys.readouterr().out
    made = make(str(file), None)
    assert (made.size, made.ranks) == (232_130, 2) and made.about["k"] == 23_213
    assert sum(np.prod(shape, dtype=int) for shape in made.about["shapes"]) == made.size
    assert made.about["identical"] is True
    for rank, expected in enumerate(World(2).run(lambda comm: first_gradient(args, comm))):
        np.testing.assert_allclose(made.at(0, rank), expected, atol=1e-4)
    assert np.abs(made.at(0, 0) - made.at(0, 1)).max() > 0.1 and np.abs(made.at(0, 0) - made.at(1, 0)).max() > 0.1
    assert main(["bench", "volume", "--ranks", "2", "--algorithms", "topka", "--gradients", str(file)]) == 0
    assert "vgg digits, 2 ranks, steps 1, 3" in capsys.readouterr().out


FEW = ("--batch-size", "2", "--image-size", "8", "--warmup", "1", "--rounds", "2", "--iterations", "2")
HANDSHAKE = 16  # bytes a rank sends in a step, of two, to make sure that both do the same


@pytest.mark.full("a benchmark of a whole model")
@needs_mpi
def test_two_ranks_compare_algorithms_and_leave_a_record(tmp_path):
    file = tmp_path / "r.json"
    options = ("--rank", "2", "--plans", "sparse", "best", "--json", str(file))
    done = launch(2, "train/throughput.py", *FEW, *options, seconds=300)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^([\w ]+\w) +([\d.]+) \+- ([\d.]+) +([\d.]+) +([\d.]+) ", done.stdout, re.MULTILINE)
    candidates = ["dense", "powersgd", "acpsgd", "plan sparse", "plan best"]
    assert [name for name, *_ in rows] == candidates and rows[0][3] == "1.00"
    assert "round 2/2, plan best: 25/25 after" in done.stderr
    record = json.loads(file.read_text())
    assert record["ranks"] == 2 and record["options"]["rank"] == 2 and record["versions"]["mpi"]
    results = record["algorithms"]
    assert all(len(r["rounds"]) == 2 and r["images_per_second"] == sum(r["rounds"]) / 2 for r in results.values())
    predicted = {name for name, r in results.items() if r["predicted_seconds"]}
    assert predicted == {"dense", "plan sparse", "plan best"} and all(r["step_seconds"] > 0 for r in results.values())
    layout = Layout.of([shape for _, shape in vgg16()])
    sent = {name: r["bytes_per_step_and_rank"] for name, r in results.items()}
    assert sent["dense"] == 4 * layout.size + HANDSHAKE
    assert sent["powersgd"] == PowerSGD(rank=2).bound(layout, 1, 2).payload(8, 4) + HANDSHAKE
    assert sent["acpsgd"] < 0.6 * sent["powersgd"]
