"""Vision Transformers have the published sizes, and their program trains."""

from __future__ import annotations

import sys

import pytest
import torch

import vit
from sparse_mpi.comm.world import World
from sparse_train.models.vision import ViT

pytest.importorskip("transformers")


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "parameters"), [("base", 86_567_656), ("small", 22_050_664)])
def test_vits_have_the_published_number_of_parameters(size, parameters):
    with torch.device("meta"):
        assert count(ViT(size)) == parameters


@pytest.mark.parametrize(
    ("image_size", "patch", "patches"), [(8, None, 4), (28, None, 49), (32, None, 64), (96, None, 36), (8, 2, 16)]
)
def test_small_images_have_small_patches(image_size, patch, patches):
    model = ViT("micro", classes=7, channels=1, image_size=image_size, patch=patch)
    assert model.classifier.vit.embeddings.position_embeddings.shape[1] == patches + 1
    assert model(torch.zeros(2, 1, image_size, image_size)).shape == (2, 7)


def test_patches_that_do_not_tile_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="patches of 4 and images of 30 pixels; --image-size 28"):
        ViT("micro", image_size=30)


def test_without_transformers_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install 'transformers"):
        ViT("micro")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("digits", {"lr": 1e-3, "epochs": 30, "batch_size": 16}),
        ("fashion-mnist", {"lr": 1e-3, "epochs": 30}),
        ("cifar10", {"lr": 1e-3, "warmup_epochs": 5, "weight_decay": 0.05}),
        ("cifar100", {"lr": 1e-3, "epochs": 100}),
        ("imagenet", {"lr": 5e-5, "batch_size": 32}),
    ],
)
def test_every_data_set_has_its_settings(data, expected):
    args = vit.PROGRAM.parse(["--data", data])
    assert {name: getattr(args, name) for name in expected} == expected
    assert (args.optimizer, args.schedule, args.size, args.patch_size) == ("adamw", "linear", None, None)


def test_sizes_go_with_their_data(monkeypatch):
    monkeypatch.setattr(vit.images, "image_task", lambda args, comm, build: args.size)
    for options, size in (
        (["--data", "imagenet"], "base"),
        (["--tiny"], "micro"),
        ([], "micro"),
        (["--data", "cifar10"], "mini"),
    ):
        assert vit.make(vit.PROGRAM.parse(options), None) == size
    assert vit.make(vit.PROGRAM.parse(["--tiny", "--size", "small"]), None) == "small"


@pytest.fixture
def task():
    args = vit.PROGRAM.parse(["--tiny", "--threads", "1"])
    torch.manual_seed(args.seed)
    return vit.make(args, World(1).run(lambda comm: comm)[0])


def test_the_tiny_one_is_small_and_learns_with_all_its_parameters(task):
    assert count(task.model) == 202_186
    loss, sums = task.forward_and_loss(next(task.train(0)))
    loss.backward()
    assert 0 < loss.item() < 10 and sums[0] == 17  # 1437 images in 89 steps
    for name, parameter in task.model.named_parameters():  # softmax takes no notice of a key's bias
        assert parameter.grad.isfinite().all() and (parameter.grad.any() or "k_proj.bias" in name), name


def test_the_same_batch_gives_the_same_numbers(task):
    first, again = (task.forward_and_loss(next(task.train(3, 2)))[0].item() for _ in range(2))
    assert first == again


def test_a_few_steps_train(tmp_path):
    options = ["--tiny", "--max-steps", "3", "--no-progress", "--threads", "1", "--check-every", "1", "--out"]
    args = vit.PROGRAM.parse([*options, str(tmp_path)])
    (outcome,) = World(1).run(lambda comm: vit.PROGRAM.train(args, comm))
    assert outcome.identical and outcome.steps == 3 and 0 < outcome.loss < 10
