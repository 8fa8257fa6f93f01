"""Ranks of a World, which share torch's generator, draw the weights and masks that processes draw."""

from __future__ import annotations

import pytest
import torch

from sparse_mpi import World
from sparse_mpi.comm import NullComm
from sparse_train.tasks.language import LanguageTask
from sparse_train.trainer.loop import step_seed
from sparse_train.trainer.survivors import digest
from transformer import PROGRAM

from .program_jobs import PROGRAMS, program_of
from .small_program import QUIET, outcomes

SHAPE = "--layers 1 --width 8 --heads 1 --vocabulary 256 --block 512 --batch-size 2 --seed 5 --checkpoint-every 0"
SLOW = {"bert pretrain": [pytest.mark.full("takes 5 s; bert squad is made alike")]}


@pytest.fixture
def passes(monkeypatch):
    """Lists of the passes in training that ranks of this process run: rank, state of the generator, loss."""
    noted, run = [], LanguageTask.forward_and_loss

    def forward_and_loss(self, batch):
        before = torch.get_rng_state().numpy().tobytes()
        loss, sums = run(self, batch)
        if self.model.training:
            noted.append((self.share.rank, before, loss.item()))
        return loss, sums

    monkeypatch.setattr(LanguageTask, "forward_and_loss", forward_and_loss)
    return noted


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, [])) for name in PROGRAMS])
def test_all_ranks_make_the_weights_of_the_seed(name, tmp_path):
    program, options = program_of(name)

    def weights(comm):
        torch.rand(1)  # whatever was drawn before
        args = program.parse([*options, *QUIET, "--seed", "7", "--out", str(tmp_path)])
        return digest((program.programs[args.task] if "task" in args else program).make(args, comm).model)

    assert {*World(3).run(weights)} == {weights(NullComm())}


@pytest.mark.parametrize("schedule", [None, 1])
def test_masks_are_of_the_seed_of_step_and_rank(schedule, passes, tmp_path):
    outcomes(PROGRAM, 3, tmp_path, *SHAPE.split(), "--max-steps", "2", schedule=schedule)
    assert len(passes) == 6 and len({loss for *_, loss in passes}) == 6
    for rank in range(3):
        for step, (_, state, _) in enumerate(entry for entry in passes if entry[0] == rank):
            assert state == torch.Generator().manual_seed(step_seed(5, step, rank)).get_state().numpy().tobytes()
