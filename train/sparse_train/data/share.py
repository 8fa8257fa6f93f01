"""A rank's share of each step's samples, before and after ranks are lost, and digests of the samples.

Images in memory, and a rank's share of them as batches: shards reshuffled every epoch, varied, normalised.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from sparse_mpi.comm import Comm

Parts = Sequence[np.ndarray]  # positions of a step's samples, one array for each rank of the start
TEST_BATCH = 250  # images evaluated at once; bounds memory only
SAMPLE = 5000  # training images from which mean and standard deviation of the channels are taken


def share_of(args: Namespace, comm: Comm) -> Share:
    """Return the share of this rank; the last ``args.spares`` ranks have none yet."""
    return Share(comm.rank, comm.size - args.spares)


class Deal(NamedTuple):
    epoch: int
    first: int  # step of that epoch
    ranks: tuple[int, ...]  # numbers of the ranks at the start
    missed: tuple[tuple[int, int], ...]  # an earlier step, and a rank whose samples of it have not been trained on


class Share:
    """The samples of one rank, out of all ranks' samples in a step.

    Until a rank is lost, each takes its part. Later the samples of a step are cut anew, into one part for each
    remaining rank; a lost rank's unused samples are in the first step dealt that way. So an epoch still has each sample
    once, except samples lost in its last steps.

    Args:
        ranks: the number of parts of a step.

    Attributes:
        place, places: this rank, and the number of ranks, for test samples.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.place, self.places = rank, ranks
        self._deals = [Deal(0, 0, tuple(range(ranks)), ())]

    def deal(self, epoch: int, first: int, ranks: Sequence[int], missed: Sequence[tuple[int, int]]) -> None:
        last = self._deals[-1]
        if (last.epoch, last.first) == (epoch, first):
            self._deals.pop()
            missed = (*last.missed, *missed)
        self._deals.append(Deal(epoch, first, tuple(ranks), tuple(missed)))

    def state(self) -> list[Any]:
        """Return how samples were dealt so far, for `join` on a rank that gets some from now on."""
        return [tuple(deal) for deal in self._deals]

    def join(self, state: Sequence[Any]) -> None:
        self._deals = [Deal(*deal) for deal in state]

    def take(self, steps: Sequence[Parts], epoch: int, first: int = 0) -> list[np.ndarray]:
        """Return the positions of this rank's samples in each of an epoch's ``steps``, from step ``first`` on."""
        return [self._dealt(steps, epoch, step)[self.rank] for step in range(first, len(steps))]

    def _dealt(self, steps: Sequence[Parts], epoch: int, step: int) -> dict[int, np.ndarray]:
        deal = next(deal for deal in reversed(self._deals) if (deal.epoch, deal.first) <= (epoch, step))
        late = deal.missed if (deal.epoch, deal.first) == (epoch, step) else ()
        parts: Sequence[np.ndarray] = steps[step]
        if late or len(deal.ranks) != self.ranks:
            missed = [self._dealt(steps, epoch, before)[rank] for before, rank in late]
            parts = np.array_split(np.concatenate([*missed, *parts]), len(deal.ranks))
        return dict(zip(deal.ranks, parts, strict=True))


def fingerprint(texts: Iterable[str], numbers: np.ndarray) -> str:
    """Return a digest of ``texts`` in their order and of ``numbers``, (any,), in 16 hexadecimal digits."""
    digest = sha256(np.ascontiguousarray(numbers).data)
    for text in texts:
        digest.update(b"%d:" % len(text))
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def shard(
    count: int, batch_size: int, size: int, seed: int, epoch: int, labels: np.ndarray | None = None
) -> list[Parts]:
    """Return the positions of each of ``size`` ranks' samples in each step of an epoch.

    All ranks draw the same order from ``seed`` and ``epoch``, cut it into equal steps and these into equal parts:
    together they see each of ``count`` samples once. A batch has ``batch_size`` samples, or a few more where ``count``
    is no multiple of them; never one alone, which batch normalisation cannot take.

    With ``labels`` ``(count,)`` shards are sorted by them: a rank only ever sees its part of the classes, in an order
    that is new in every epoch.

    Raises ValueError: fewer than 2 samples a rank.
    """
    if count < 2 * size:
        raise ValueError(f"{count} training samples are too few for {size} ranks: each needs at least 2")
    steps = max(1, count // (batch_size * size))
    rng = np.random.default_rng((seed, epoch))
    if labels is None:
        parts = np.array_split(rng.permutation(count), steps * size)
        return [parts[at : at + size] for at in range(0, len(parts), size)]
    drawn = rng.bit_generator.state
    own = []
    for part in np.array_split(np.argsort(labels, kind="stable"), size):
        rng.bit_generator.state = drawn  # each rank draws as if there were no others
        own.append(np.array_split(rng.permutation(part), steps))
    return list(zip(*own, strict=True))


class Epochs:
    """The samples of a rank: of its steps in each epoch, and of its part of the test.

    Args:
        draw: returns each rank's samples in each step of an epoch, the same on all ranks.
        share: this rank's part of the examples.
    """

    def __init__(self, draw: Callable[[int], list[Parts]], share: Share) -> None:
        self._draw, self._share = draw, share
        self.steps = len(draw(0))  # steps of an epoch, on every rank

    def train(self, epoch: int, first: int = 0) -> list[np.ndarray]:
        """Return the positions of the samples of each step of an epoch, from step ``first`` on."""
        return self._share.take(self._draw(epoch), epoch, first)

    def test(self, count: int, most: int) -> list[np.ndarray]:
        """Return the positions of this rank's part of ``count`` test samples, at most ``most`` at once."""
        own = np.arange(self._share.place, count, self._share.places)
        return [own[start : start + most] for start in range(0, len(own), most)]


def shuffled(count: int, batch_size: int, share: Share, seed: int, labels: np.ndarray | None = None) -> Epochs:
    return Epochs(lambda epoch: shard(count, batch_size, share.ranks, seed, epoch, labels), share)


class Split(NamedTuple):
    images: np.ndarray  # (N, channels, height, width) uint8
    labels: np.ndarray  # (N,) int64, 0 <= label < classes


class Images(NamedTuple):
    train: Split
    test: Split
    classes: int


class Batches:
    """A rank's batches ``(images, labels)``: ``(B, channels, height, width)`` float32 and ``(B,)`` int64.

    Args:
        images: the whole data set, the same on all ranks.
        seed: seed of the order and the variations; the same on all ranks.
        image_size: height and width that images are resized to; None leaves them as they are.
        padding, flip: see `data.InMemory`; 0 and False vary nothing.
        by_label: True sorts shards, see `shard`.
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

        Each step has its own random stream, so that earlier steps do not matter.
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
    count, channels, height, width = images.shape
    top, left = (torch.from_numpy(rng.integers(0, 2 * padding + 1, (count, 1))) for _ in range(2))
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    picture, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    return pad(images, [padding] * 4)[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirror(images: Tensor, rng: np.random.Generator) -> Tensor:
    chosen = torch.from_numpy(rng.random(len(images)) < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(3), images)
