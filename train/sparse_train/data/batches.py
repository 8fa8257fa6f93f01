"""Images in memory, and a rank's share of them as batches: shards reshuffled every epoch, varied, normalised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from sparse_train.data.share import Share, shuffled


class Split(NamedTuple):
    """Labelled images."""

    images: np.ndarray  # (N, channels, height, width) uint8
    labels: np.ndarray  # (N,) int64, 0 <= label < classes


class Images(NamedTuple):
    """A data set of images, the same on all ranks."""

    train: Split
    test: Split
    classes: int


TEST_BATCH = 250  # images evaluated at once; bounds memory only
SAMPLE = 5000  # training images from which mean and standard deviation of the channels are taken


class Batches:
    """A rank's batches ``(images, labels)``: ``(B, channels, height, width)`` float32 and ``(B,)`` int64.

    Args:
        images: the whole data set, the same on all ranks.
        seed: what the order and the variations depend on; the same on all ranks.
        image_size: height and width that images are resized to; None leaves them as they are.
        padding, flip: see `data.source.InMemory`; 0 and False vary nothing.
        by_label: whether shards are sorted, see `shard`.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        share: Share,
        seed: int,
        image_size: int | None = None,
        padding: int = 0,
        flip: bool = False,
        by_label: bool = False,
    ) -> None:
        self._images, self._seed, self.share = images, seed, share
        labels = images.train.labels
        self._epochs = shuffled(len(labels), batch_size, share, seed, labels if by_label else None)
        self._resizes, self._padding, self._flip = image_size is not None, padding, flip
        pixels = images.train.images
        pixels = pixels[:: max(1, len(pixels) // SAMPLE)]
        self._mean = torch.tensor(pixels.mean((0, 2, 3)), dtype=torch.float32)[:, None, None]
        self._deviation = torch.tensor(pixels.std((0, 2, 3)), dtype=torch.float32)[:, None, None].clamp(min=1)
        self.classes, self.channels = images.classes, int(pixels.shape[1])
        self.image_size: int = image_size or pixels.shape[2]
        self.steps = self._epochs.steps

    def train(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's training batches of ``epoch`` from step ``first`` on, varied as in that epoch.

        Each step draws from a random stream of its own, so that it does not matter which steps were taken before.
        """
        for step, positions in enumerate(self._epochs.train(epoch, first), first):
            # 0, 0 would be the shards' stream
            rng = np.random.default_rng((self._seed, epoch, step, self.share.rank + 1))
            images, labels = self._take(self._images.train, positions)
            if self._padding:
                images = crop(images, self._padding, rng)
            if self._flip:
                images = mirror(images, rng)
            yield self._resize(images), labels

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of the test images, which may be empty."""
        for positions in self._epochs.test(len(self._images.test.labels), TEST_BATCH):
            images, labels = self._take(self._images.test, positions)
            yield self._resize(images), labels

    def _take(self, split: Split, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(split.images[positions]).float()
        return (images - self._mean) / self._deviation, torch.from_numpy(split.labels[positions])

    def _resize(self, images: Tensor) -> Tensor:
        if not self._resizes:
            return images
        return interpolate(images, size=(self.image_size, self.image_size), mode="bilinear", antialias=True)


def crop(images: Tensor, padding: int, rng: np.random.Generator) -> Tensor:
    """Shift each of ``(B, C, H, W)`` images by up to ``padding`` pixels either way, filling with zeros."""
    count, channels, height, width = images.shape
    top, left = (torch.from_numpy(rng.integers(0, 2 * padding + 1, (count, 1))) for _ in range(2))
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    picture, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    return pad(images, [padding] * 4)[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirror(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirror each of ``(B, C, H, W)`` images left to right with probability 1/2."""
    chosen = torch.from_numpy(rng.random(len(images)) < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(3), images)
