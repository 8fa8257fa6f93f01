"""Recording gradients of a training run, for `bench volume` and `trace`."""

from __future__ import annotations

import numpy as np
import torch

import gradients as recording
from sparse_mpi.__main__ import main
from sparse_mpi.comm.world import World
from sparse_mpi.optim import broadcast_parameters
from sparse_mpi_bench.analysis.gradients import make

TINY = ["--tiny", "--threads", "1", "--no-progress"]


def first_gradient(args, comm):
    """Of the weights of rank 0 on this rank's first batch."""
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
