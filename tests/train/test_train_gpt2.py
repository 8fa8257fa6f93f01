"""GPT-2 looks back only, has its published size, and learns."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import pytest
import torch

from gpt2 import GPT2, PROGRAM, SHAPES, SIZES
from sparse_mpi.comm import NullComm
from sparse_train.tasks.language import Shape

from .small_training import losses_of

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


@pytest.mark.parametrize("gradients", [True, False])
def test_it_sees_only_what_came_before(gradients):
    torch.manual_seed(0)
    model = GPT2(40, Shape(layers=2, width=16, heads=4, block=16, vocabulary=40)).eval()
    tokens = torch.arange(20).reshape(2, 10)
    changed = tokens.clone()
    changed[:, 6] = 39
    with torch.set_grad_enabled(gradients):
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 10, 40)
    assert torch.allclose(before[:, :6], after[:, :6], atol=1e-6)
    assert (before[:, 6:] - after[:, 6:]).abs().amax((0, 2)).min() > 1e-4


@pytest.mark.parametrize(("size", "parameters"), [("small", 124_439_808), ("medium", 354_823_168)])
def test_it_has_the_published_number_of_parameters(size, parameters):
    with torch.device("meta"):
        model = GPT2(50_257, Shape(*SIZES[size], block=1024, vocabulary=50_257))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_settings_of_wikitext_103_are_those_published():
    args = PROGRAM.parse(["--data", "wikitext-103"])
    assert (args.optimizer, args.lr, args.batch_size) == ("adamw", 5e-5, 2)
    assert SHAPES["wikitext-103"] == (12, 768, 12, 1024, 50_257)


def test_tiny_learns_in_few_steps():
    args = PROGRAM.parse(["--tiny"])
    torch.manual_seed(args.seed)
    task = PROGRAM.make(args, NullComm())
    assert sum(p.numel() for p in task.model.parameters()) < 300_000
    optimizer = torch.optim.AdamW(task.model.parameters(), args.lr)
    losses = losses_of(task, optimizer, 15)
    assert losses[0] == pytest.approx(math.log(256), abs=0.1) and losses[-1] < 3.9


def test_options_go_before_a_size_and_a_size_before_the_defaults():
    given = ["--tiny", "--size", "small", "--layers", "1", "--width", "24", "--vocabulary", "300", "--block", "32"]
    task = PROGRAM.make(PROGRAM.parse(given), NullComm())
    config = task.model.model.config
    assert (config.n_layer, config.n_embd, config.n_head, config.n_positions) == (1, 24, 12, 32)
    assert config.vocab_size == 300


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        PROGRAM.make(PROGRAM.parse(["--tiny"]), NullComm())
