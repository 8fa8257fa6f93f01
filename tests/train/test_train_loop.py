"""Training on the ranks of a World: it learns, to the same bits each time, and says when it cannot go on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_train.trainer.loop import Training, step_seed
from sparse_train.trainer.survivors import evaluate, identical

from .small_program import LOG, PROGRAM, make, train
from .small_training import network


@pytest.mark.usefixtures("no_signals")
def test_steps_are_timed_without_the_checked_ones_and_the_dense_warm_up(tmp_path, monkeypatch):
    timed, usual = [], Training._usual_step
    monkeypatch.setattr(Training, "_usual_step", lambda self: timed.append(len(self.durations)) or usual(self))
    some = train(1, tmp_path / "some", "--max-steps", "9", "--dense-warmup", "3", "--check-every", "2")
    none = train(1, tmp_path / "none", "--max-steps", "2", "--check-every", "1")
    assert some.step_seconds > 0 and none.step_seconds is None
    assert timed == [3, 0]  # of steps 4 to 9 without 4, 6 and 8


def test_random_numbers_are_of_a_seed_a_step_and_a_rank():
    seeds = [step_seed(seed, step, rank) for seed in (1, 2) for step in (0, 1) for rank in range(3)]
    assert len(set(seeds)) == 12


@pytest.mark.ranks(1, 2, 3, 4)
def test_scores_are_those_of_all_test_data_on_every_rank(ranks, tmp_path):
    args = PROGRAM.parse([*LOG, "--out", str(tmp_path)])

    def body(comm):
        made = make(args, comm)
        made.model[2].running_mean += comm.rank
        made.model.train()
        scores = evaluate(made, comm)
        assert not made.model.training and made.model[2].running_mean[0] == pytest.approx((comm.size - 1) / 2)
        assert all(p.grad is None for p in made.model.parameters())
        sums = sum((made.forward_and_loss(batch)[1].numpy() for batch in made.test()), np.zeros(3))
        return scores, sums

    scores, sums = zip(*ranks.run(body), strict=True)
    total = sum(sums)
    assert total[0] == 60 and all(one == scores[0] for one in scores)
    assert scores[0] == {"loss": pytest.approx(total[1] / 60), "accuracy": total[2] / 60}


@pytest.mark.ranks(3)
def test_identical_sees_one_bit_on_one_rank(ranks):
    def body(comm):
        model = network()
        with torch.no_grad():
            model[4].bias[0] = -0.0 if comm.rank == 2 else 0.0
        return identical(model, comm)

    assert ranks.run(body) == [False] * 3
