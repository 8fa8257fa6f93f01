"""A small network that learns which half of an image is brighter, for training jobs of a moment."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from sparse_train.data import Split


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def two_classes(count):
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 1, 2, 2)).astype(np.uint8)
    return Split(images, (images[:, 0, 0].sum(1) > images[:, 0, 1].sum(1).astype(int)).astype(np.int64))


def losses_of(task, optimizer, steps):
    losses = []
    for _, batch in zip(range(steps), task.train(0), strict=False):
        loss, _ = task.forward_and_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
