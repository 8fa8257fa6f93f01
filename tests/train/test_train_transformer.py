"""The transformer looks back only, and learns."""

from __future__ import annotations

import math

import pytest
import torch

from sparse_mpi.comm import NullComm
from sparse_train.models.language import Transformer
from transformer import PROGRAM

from .small_training import losses_of


@pytest.mark.parametrize("gradients", [True, False])
def test_it_sees_only_what_came_before(gradients):
    torch.manual_seed(0)
    model = Transformer(40, block=16, width=16, layers=2, heads=4, dropout=0.1).eval()
    tokens = torch.arange(20).reshape(2, 10)
    changed = tokens.clone()
    changed[:, 6] = 39
    with torch.set_grad_enabled(gradients):  # without, torch takes other kernels
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 10, 40)
    assert torch.allclose(before[:, :6], after[:, :6], atol=1e-6)
    assert (before[:, 6:] - after[:, 6:]).abs().amax((0, 2)).min() > 1e-4


def test_it_tells_the_order_of_what_came_before():
    torch.manual_seed(0)
    model = Transformer(40, block=16, width=16, layers=1, heads=2, dropout=0.0).eval()
    one, other = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
    assert not torch.allclose(one, other)


def test_layers_start_with_weights_of_their_own():
    model = Transformer(10, block=4, width=8, layers=2, heads=2, dropout=0.0)
    one, other = (layer.linear1.weight for layer in model.layers)
    assert not torch.equal(one, other)


def test_tiny_learns_in_few_steps():
    args = PROGRAM.parse(["--tiny"])
    torch.manual_seed(args.seed)
    task = PROGRAM.make(args, NullComm())
    assert sum(p.numel() for p in task.model.parameters()) < 300_000
    optimizer = torch.optim.Adam(task.model.parameters(), args.lr)
    losses = losses_of(task, optimizer, 15)
    assert losses[0] == pytest.approx(math.log(256), abs=0.2) and losses[-1] < 3.9


def test_settings_of_wikitext_2_are_those_published():
    args = PROGRAM.parse(["--data", "wikitext-2"])
    assert (args.batch_size, args.lr, args.lr_times_ranks, args.optimizer) == (64, 2e-3, True, "adam")


def test_a_vocabulary_for_bytes_is_refused():
    with pytest.raises(SystemExit, match="--vocabulary: 300 has no effect with --tiny"):
        PROGRAM.parse(["--tiny", "--vocabulary", "300"])


def test_a_width_that_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="width must be a multiple of the 5 heads, got 201; 200 is"):
        PROGRAM.make(PROGRAM.parse(["--width", "201"]), NullComm())
