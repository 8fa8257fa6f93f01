"""A training job of a moment: a small network that learns which half of an image is brighter."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from sparse_mpi.optim import DistributedOptimizer
from sparse_train.data import Images, Split
from sparse_train.data.share import Batches, Share
from sparse_train.records.metrics import Metrics
from sparse_train.tasks.images import ImageTask
from sparse_train.trainer.loop import Training


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def two_classes(count):
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 1, 2, 2)).astype(np.uint8)
    return Split(images, (images[:, 0, 0].sum(1) > images[:, 0, 1].sum(1).astype(int)).astype(np.int64))


def settings(**changes):
    values = {"epochs": 4, "max_steps": None, "seed": 1, "log_every": 2, "progress": False, "plot": False, "out": None}
    values |= {"lr": 0.2, "lr_times_ranks": False, "warmup_epochs": 1, "schedule": "steps", "milestones": [3]}
    values |= {"dense_warmup": 0, "density_warmup": 0, "check_every": 0, "watch_every": 0, "flush": False}
    values |= {"timeline": None, "min_ranks": 1, "spares": 0}
    return SimpleNamespace(**(values | changes))


def task(comm):
    """Make a task of 240 images to train on and 60 to test, 10 a step on this rank."""
    batches = Batches(Images(two_classes(240), two_classes(60), 2), 10, Share(comm.rank, comm.size), seed=1)
    return ImageTask(network(seed=comm.rank), batches)


def train(comm, args, folder=None, momentum=0.5, task=task, **options):
    made = task(comm)
    optimizer = torch.optim.SGD(made.model.parameters(), 0.1, momentum, weight_decay=1e-3, fused=True)
    options = {"bucket_cap_mb": None, "compression": options.pop("algorithm", "oktopk")} | options
    distributed = DistributedOptimizer(optimizer, comm=comm, **options)
    metrics = Metrics(folder, comm)
    return Training(made, distributed, args, comm, metrics).run(), made.model


def losses_of(task, optimizer, steps):
    losses = []
    for _, batch in zip(range(steps), task.train(0), strict=False):
        loss, _ = task.forward_and_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
