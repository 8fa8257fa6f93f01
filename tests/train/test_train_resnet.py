"""ResNets have the published sizes and shapes, and their program trains."""

from __future__ import annotations

import json
import math

import pytest
import torch

import resnet
from sparse_mpi.comm.world import World
from sparse_train.models.vision import FORMS, Residual, ResNet
from sparse_train.ranks.job import JobError


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("depth", "classes", "image_size", "parameters"),
    [
        (20, 10, 32, 269_722),  # with shortcuts that have none, as in the paper; with projections 272,474
        (50, 1000, 224, 25_557_032),
        (101, 1000, 224, 44_549_160),
        (152, 1000, 224, 60_192_808),
    ],
)
def test_resnets_have_the_published_number_of_parameters(depth, classes, image_size, parameters):
    with torch.device("meta"):
        model = ResNet(depth, classes, 3, image_size)
    assert count(model) == parameters
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    projections = [m for b in model.blocks for m in b.shortcut.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(layers) - len(projections) == depth


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("digits", {"epochs": 12, "momentum": 0.75, "lr_times_ranks": False}),
        ("fashion-mnist", {"epochs": 20, "batch_size": 32}),
        ("cifar10", {"lr": 0.1, "milestones": (81, 122), "epochs": 164, "weight_decay": 1e-4, "momentum": 0.9}),
        ("cifar100", {"lr": 0.0125, "lr_times_ranks": True, "epochs": 80, "weight_decay": 5e-5, "batch_size": 32}),
        ("imagenet", {"lr": 0.0125, "warmup_epochs": 5, "milestones": (30, 60, 80), "density": 0.0275}),
    ],
)
def test_every_data_set_has_its_settings(data, expected):
    args = resnet.PROGRAM.parse(["--data", data])
    assert {name: getattr(args, name) for name in expected} == expected and args.optimizer == "sgd"
    assert args.depth is None and args.zero_gamma is False


def test_published_depths_go_with_their_data(monkeypatch):
    monkeypatch.setattr(resnet.images, "image_task", lambda args, comm, build: args.depth)
    for options, depth in ((["--data", "cifar100"], 50), (["--data", "imagenet"], 152), (["--tiny"], 20), ([], 20)):
        assert resnet.make(resnet.PROGRAM.parse(options), None) == depth
    assert resnet.make(resnet.PROGRAM.parse(["--data", "cifar100", "--depth", "101"]), None) == 101


@pytest.fixture
def task():
    args = resnet.PROGRAM.parse(["--tiny", "--threads", "1"])
    torch.manual_seed(args.seed)
    return resnet.make(args, World(1).run(lambda comm: comm)[0])


def test_the_tiny_one_is_small_and_learns_with_all_its_parameters(task):
    assert count(task.model) == 17_254
    loss, sums = task.forward_and_loss(next(task.train(0)))
    loss.backward()
    assert 0 < loss.item() < 10 and sums[0] == 17  # 1437 images in 89 steps
    assert all(p.grad.abs().max() > 0 for p in task.model.parameters())


def test_the_same_batch_gives_the_same_numbers(task):
    first, again = ([task.forward_and_loss(next(task.train(3, 2)))[0].item() for _ in range(2)] for _ in range(2))
    assert first == again and first[0] == first[1]


def train(tmp_path, *options):
    """Train a few steps on one rank; return the last record and the configuration."""
    common = ("--tiny", "--no-progress", "--threads", "1", "--check-every", "1", "--out", str(tmp_path / "run"))
    args = resnet.PROGRAM.parse([*options, *common])
    (outcome,) = World(1).run(lambda comm: resnet.PROGRAM.train(args, comm))
    return outcome, json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])


def test_a_few_steps_train(tmp_path):
    outcome, config = train(tmp_path, "--max-steps", "3")
    assert outcome.identical and outcome.steps == 3 and 0 < outcome.loss < 10
    assert (config["data"], config["depth"], config["parameters"]) == ("digits", 20, 17_254)


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
    assert (config["depth"], config["parameters"]) == (50, count(ResNet(50, 2, 3, 64, width=16)))


def test_a_missing_tree_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(JobError, match="no train in .*; --data-dir must name"):
        train(tmp_path, "--data", "imagenet", "--data-dir", str(tmp_path))
