"""The emulated backward pass of `train/overlap.py`, and its record."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import overlap
from sparse_train.models.vision import VGG16

from ..launch import ROOT


def test_an_emulated_model_hands_out_the_gradients_that_were_drawn():
    """All of a VGG-16's parameters get theirs, in the order of the model's, and no two share any."""
    pool = torch.arange(14_728_266 + 5, dtype=torch.float32)
    model = overlap.Emulated("vgg16", 0.0, pool)
    assert [p.shape for p in model.parameters()] == [p.shape for p in VGG16().parameters()]
    model.offset = 5
    model(torch.zeros(1, requires_grad=True)).backward()
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), pool[5:])


def test_layers_take_shares_of_the_pass_by_their_multiplications():
    """By hand: the second convolution of VGG-16 makes 36,928 at each of 32 x 32 pixels, the last layer 5,130."""
    shapes, shares = overlap.layers_of("vgg16")
    assert shapes[2] == [(64, 64, 3, 3), (64,)] and sum(shares) == pytest.approx(1)
    assert shares[2] / shares[-1] == pytest.approx(36_928 * 32 * 32 / 5_130)


def test_ways_have_options_of_the_algorithm_and_two_of_the_program():
    for way in ("ddp", "elect:votes=0.5:one-bucket", "oktopk:no-overlap"):
        overlap.check(way)
    for way, says in (("elect:lr=0.1", "got --lr, 0.1"), ("auto", "algorithm must be one of"), ("elect:-", "got")):
        with pytest.raises(ValueError, match=says):
            overlap.check(way)


@pytest.mark.jobs
@pytest.mark.full("times steps of emulated models")
def test_a_record_goes_on_with_what_it_lacks(tmp_path):
    file = tmp_path / "overlap.json"
    command = [sys.executable, "-m", "sparse_mpi", "run", "-n", "2", "train/overlap.py", "--models", "small"]
    command += ["--ways", "ddp", "oktopk:one-bucket", "--backward", "1", "--steps", "1", "--json", str(file)]
    for network in ("a", "b", "a"):
        done = subprocess.run([*command, "--network", network], cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["measured"]
    assert [row["network"] for row in rows] == ["b", "a"] and all(row["n"] == 1_010_000 for row in rows)
    assert all(list(row["ways"]) == ["alone", "ddp", "oktopk:one-bucket"] for row in rows)
    assert rows[0]["ways"]["oktopk:one-bucket"]["buckets"] == 1 and rows[0]["ways"]["alone"]["exposed"] == 0
