"""Replicas of a model on the ranks of a World: whether they are equal, and how buffers become so."""

from __future__ import annotations

import pytest
import torch

from sparse_train.trainer.survivors import average_buffers, identical

from .small_training import network

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
