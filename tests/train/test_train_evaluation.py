"""Evaluation and replicas: sums over all ranks, whatever share of the test data each has, and equal models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_train.trainer.survivors import average_buffers, evaluate, identical

from .small_training import Slope, network, task


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


@pytest.mark.ranks(1, 3)
def test_ranks_without_test_data_learn_the_scores_too(ranks):
    def body(comm):
        torch.manual_seed(0)
        return evaluate(Slope(comm), comm)

    scores = ranks.run(body)
    assert all(one == scores[0] for one in scores) and 0 < scores[0]["loss"] <= scores[0]["worst"]


few_ranks = pytest.mark.ranks(1, 2, 3, 4)


@few_ranks
def test_other_weights_are_seen(ranks):
    assert ranks.run(lambda comm: identical(network(seed=comm.rank), comm)) == [ranks.size == 1] * ranks.size


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
