"""The task of classifying images, and its options."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sparse_mpi import World
from sparse_train.tasks.images import extend, image_task


def digits(comm, **changes):
    values = {"data": "digits", "data_dir": Path("nowhere"), "batch_size": 16, "seed": 1}
    args = SimpleNamespace(
        **(values | {"augment": True, "image_size": None, "shards": "shuffled", "spares": 0} | changes)
    )
    return image_task(args, comm, lambda seen: nn.Sequential(nn.Flatten(), nn.Linear(64 * seen.channels, seen.classes)))


def test_ranks_share_the_images_and_their_model_fits_them():
    tasks = World(3).run(digits)
    assert {task.steps for task in tasks} == {1437 // 48} and tasks[0].model[1].weight.shape == (10, 64)
    assert sum(len(labels) for task in tasks for _, labels in task.train(0)) == 1437
    assert sum(len(labels) for task in tasks for _, labels in task.test()) == 360
    for (images, _), (later, _) in zip(list(tasks[1].train(2))[5:], tasks[1].train(2, 5), strict=True):
        assert torch.equal(images, later)


def test_what_is_judged_adds_up_to_mean_loss_and_accuracy():
    (task,) = World(1).run(digits)
    batches = list(task.test())
    outputs = torch.cat([task.model(images) for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    results = [task.forward_and_loss(batch) for batch in batches]
    sums = sum(sums for _, sums in results)
    loss = -outputs.log_softmax(1)[range(360), labels].mean()
    right = (outputs.argmax(1) == labels).float().mean()
    assert task.scores(sums) == {"loss": pytest.approx(loss.item()), "accuracy": pytest.approx(right.item())}
    assert list(task.scores(sums)) == ["loss", task.headline] and sums[0] == 360
    results[0][0].backward()
    assert task.model[1].weight.grad.any()


def test_options_for_images():
    parser = ArgumentParser()
    extend(parser)
    assert vars(parser.parse_args([])) == {"image_size": None, "augment": True, "shards": "shuffled"}
    args = parser.parse_args(["--image-size", "5", "--no-augment"])
    (task,) = World(1).run(lambda comm: digits(comm, batch_size=1437, **vars(args)))
    (plain,) = World(1).run(lambda comm: digits(comm, batch_size=1437, augment=False))
    (varied,) = World(1).run(lambda comm: digits(comm, batch_size=1437))
    seen = [next(task.train(0))[0] for task in (task, plain, varied)]
    assert [images.shape[2:] for images in seen] == [(5, 5), (8, 8), (8, 8)]
    assert not torch.equal(seen[1], seen[2])
