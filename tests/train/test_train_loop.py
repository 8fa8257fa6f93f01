"""Training on the ranks of a World: it learns, to the same bits each time, and says when it cannot go on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import World
from sparse_train.trainer.loop import Training, step_seed
from sparse_train.trainer.survivors import evaluate, identical

from .small_training import network, settings, task, train


def test_steps_are_timed_without_the_checked_ones_and_the_dense_warm_up(monkeypatch):
    timed, usual = [], Training._usual_step
    monkeypatch.setattr(Training, "_usual_step", lambda self: timed.append(len(self.durations)) or usual(self))

    def body(comm):
        outcome, _ = train(comm, settings(max_steps=9, dense_warmup=3, check_every=2))
        assert outcome.step_seconds > 0
        outcome, _ = train(comm, settings(max_steps=2, check_every=1))
        assert outcome.step_seconds is None

    World(1).run(body)
    assert timed == [3, 0]  # of steps 4 to 9 without 4, 6 and 8


def test_random_numbers_are_of_a_seed_a_step_and_a_rank():
    seeds = [step_seed(seed, step, rank) for seed in (1, 2) for step in (0, 1) for rank in range(3)]
    assert len(set(seeds)) == 12


@pytest.mark.ranks(1, 2, 3, 4)
def test_scores_are_those_of_all_test_data_on_every_rank(ranks):
    def body(comm):
        made = task(comm)
        made.model.load_state_dict(network(seed=3).state_dict())
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
