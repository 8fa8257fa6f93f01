"""The data sets that training programs know. A new one is a line here and a file with a `load`, or a tree of files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_train.data import small_images
from sparse_train.data.imagenet import SIZE, FolderBatches
from sparse_train.data.share import Batches, Images, Share, Split, share_of

__all__ = ["DATASETS", "Batch", "ImageBatches", "Images", "InMemory", "OnDisk", "Source", "Split"]
Batch = tuple[Tensor, Tensor]  # (B, channels, height, width) float32, (B,) int64


class ImageBatches(Protocol):
    """A rank's share of labelled images."""

    classes: int
    channels: int
    image_size: int  # height and width
    steps: int  # of a training epoch, the same on all ranks
    share: Share  # of the samples, this rank's

    def train(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this rank's training batches of ``epoch``, from step ``first`` on."""

    def test(self) -> Iterator[Batch]:
        """Yield this rank's share of the test batches, which may be empty."""


class Source(Protocol):
    """An entry of `data.DATASETS`."""

    @property
    def folder(self) -> str:
        """Return the folder that is read unless --data-dir names another."""

    def batches(self, args: Namespace, comm: Comm) -> ImageBatches:
        """Return the share of rank ``comm.rank``, by the options in ``args``; nothing is communicated.

        Raises OSError, ValueError, ImportError: the images cannot be read, or are too few.
        """


@dataclass(frozen=True)
class InMemory:
    """A data set that every rank holds: how to read it, and how its training images may be varied."""

    load: Callable[[Path], Images]  # raises FileNotFoundError or ValueError, saying what was expected where
    folder: str
    padding: int  # pixels of zeros around an image before one of its size is cut out at random
    flip: bool  # whether an image may be mirrored left to right

    def batches(self, args: Namespace, comm: Comm) -> Batches:
        """Return this rank's share, see `Source.batches`."""
        padding, flip = (self.padding, self.flip) if args.augment else (0, False)
        images = self.load(args.data_dir)
        varied = (args.image_size, padding, flip, args.shards == "sorted")
        return Batches(images, args.batch_size, share_of(args, comm), args.seed, *varied)


@dataclass(frozen=True)
class OnDisk:
    """A tree of class folders, see `data.imagenet`."""

    folder: str

    def batches(self, args: Namespace, comm: Comm) -> FolderBatches:
        """Return this rank's share, see `Source.batches`."""
        how = (args.image_size or SIZE, args.augment, args.threads, args.shards == "sorted")
        return FolderBatches(args.data_dir, args.batch_size, share_of(args, comm), args.seed, *how)


DATASETS: dict[str, Source] = {
    "digits": InMemory(small_images.load_scikit_digits, "(comes with scikit-learn)", padding=1, flip=False),
    "fashion-mnist": InMemory(
        small_images.load_fashion_mnist, "/usr/share/datasets/fashion-mnist", padding=2, flip=True
    ),
    "cifar10": InMemory(small_images.load_cifar10, "data", padding=4, flip=True),
    "cifar100": InMemory(small_images.load_cifar100, "data", padding=4, flip=True),
    "imagenet": OnDisk("data/imagenet"),
}
