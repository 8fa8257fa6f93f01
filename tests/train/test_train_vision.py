"""VGGs, ResNets and Vision Transformers take images of any size, and their programs choose sizes by their data."""

from __future__ import annotations

import pytest
import torch

import resnet
import vit
from sparse_train.models.vision import Residual, ResNet, ViT


def test_blocks_start_as_their_shortcuts_if_gamma_is_zero():
    images = torch.rand(3, 16, 8, 8)
    for zero in (True, False):
        first = ResNet(50, width=4, zero_gamma=zero).blocks[1]
        assert isinstance(first, Residual) and first(images).equal(images) == zero


DEPTHS = {"--data cifar100": 50, "--data imagenet": 152, "--tiny": 20, "": 20, "--data cifar100 --depth 101": 101}
SIZES = {"--data imagenet": "base", "--tiny": "micro", "": "micro", "--data cifar10": "mini", "--size small": "small"}


@pytest.mark.parametrize(("program", "option", "given"), [(resnet, "depth", DEPTHS), (vit, "size", SIZES)])
def test_published_sizes_go_with_their_data(monkeypatch, program, option, given):
    monkeypatch.setattr(program.images, "image_task", lambda args, comm, build: getattr(args, option))
    for options, size in given.items():
        assert program.make(program.PROGRAM.parse(options.split()), None) == size


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
