"""VGGs, ResNets and Vision Transformers take images of any size, and their programs choose sizes by their data."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

import resnet
import vgg
import vit
from sparse_train.models.vision import FORMS, VGG16, Residual, ResNet, ViT
from sparse_train.ranks.job import JobError

from .small_program import outcomes, records

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


@pytest.mark.parametrize("depth", [20, 50])
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (64, 3)])
def test_small_images_lose_size_between_stages_alone(depth, size, channels):
    model = ResNet(depth, 7, channels, size, width=4).eval()
    images = torch.zeros(2, channels, size, size)
    pooled = depth != 20 and size >= 64
    assert model.stem(images).shape[2:] == (size // 4, size // 4) if pooled else (size, size)
    strides = 2 ** (len(FORMS[depth].blocks) - 1)
    assert model.blocks(model.stem(images)).shape[2] == -(-size // (4 if pooled else 1) // strides)
    assert model(images).shape == (2, 7)


def test_a_shortcut_without_parameters_subsamples_and_adds_zeros():
    block = ResNet(20, width=2).blocks[3]
    images = torch.arange(2 * 4 * 4.0).reshape(1, 2, 4, 4)
    short = block.shortcut(images)
    assert short.shape == (1, 4, 2, 2) and not short[:, 2:].any()
    assert short[0, 0].tolist() == [[0, 2], [8, 10]]


def test_blocks_start_as_their_shortcuts_if_gamma_is_zero():
    images = torch.rand(3, 16, 8, 8)
    for zero in (True, False):
        first = ResNet(50, width=4, zero_gamma=zero).blocks[1]
        assert isinstance(first, Residual) and first(images).equal(images) == zero


def test_published_depths_go_with_their_data(monkeypatch):
    monkeypatch.setattr(resnet.images, "image_task", lambda args, comm, build: args.depth)
    given = {"--data cifar100": 50, "--data imagenet": 152, "--tiny": 20, "": 20, "--data cifar100 --depth 101": 101}
    for options, depth in given.items():
        assert resnet.make(resnet.PROGRAM.parse(options.split()), None) == depth


def train(tmp_path, *options):
    """Train a few steps on one rank; return the outcome and the configuration."""
    (outcome,) = outcomes(resnet.PROGRAM, 1, tmp_path / "run", "--tiny", "--check-every", "1", *options)
    return outcome, records(tmp_path / "run")[0]


def test_a_tree_of_images_trains(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part, each in (("train", 6), ("val", 2)):
        for name, colour in (("black", 0), ("white", 255)):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(each):
                image.new("L", (90, 70), colour).save(tmp_path / part / name / f"{number}.JPEG")
    tree = ("--data", "imagenet", "--data-dir", str(tmp_path), "--batch-size", "4")
    outcome, config = train(tmp_path, *tree, "--depth", "50", "--image-size", "64", "--max-steps", "2")
    assert outcome.identical and outcome.steps == 2 and math.isfinite(outcome.loss)
    assert (config["depth"], config["parameters"]) == (
        50,
        sum(p.numel() for p in ResNet(50, 2, 3, 64, width=16).parameters()),
    )


def test_a_missing_tree_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(JobError, match="no train in .*; --data-dir must name"):
        train(tmp_path, "--data", "imagenet", "--data-dir", str(tmp_path))


@needs_transformers
@pytest.mark.parametrize(
    ("image_size", "patch", "patches"), [(8, None, 4), (28, None, 49), (32, None, 64), (96, None, 36), (8, 2, 16)]
)
def test_small_images_have_small_patches(image_size, patch, patches):
    model = ViT("micro", classes=7, channels=1, image_size=image_size, patch=patch)
    assert model.classifier.vit.embeddings.position_embeddings.shape[1] == patches + 1
    assert model(torch.zeros(2, 1, image_size, image_size)).shape == (2, 7)


@needs_transformers
def test_patches_that_do_not_tile_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="patches of 4 and images of 30 pixels; --image-size 28"):
        ViT("micro", image_size=30)


@needs_transformers
def test_sizes_go_with_their_data(monkeypatch):
    monkeypatch.setattr(vit.images, "image_task", lambda args, comm, build: args.size)
    given = {"--data imagenet": "base", "--tiny": "micro", "": "micro", "--data cifar10": "mini"}
    for options, size in {**given, "--tiny --size small": "small"}.items():
        assert vit.make(vit.PROGRAM.parse(options.split()), None) == size


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (48, 3)])
def test_vgg16_takes_small_and_large_images(size, channels):
    model = VGG16(classes=7, channels=channels).eval()
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 7)


def test_a_tiny_one_learns_in_a_moment(tmp_path):
    outcomes(vgg.PROGRAM, 1, tmp_path, "--tiny")
    losses = [record["loss"] for record in records(tmp_path, "epoch")]
    assert records(tmp_path)[0]["parameters"] == 232_130 and len(losses) == 2 and losses[1] < 0.9 * losses[0]
