"""The data sets that training programs know. A new one is a line here and a file with a `load`, or a tree of files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sparse_mpi.comm import Comm
from sparse_train.data import small_images
from sparse_train.data.imagenet import SIZE, FolderBatches
from sparse_train.data.share import Batches, Images, Split, share_of

__all__ = ["DATASETS", "Batch", "ImageBatches", "Images", "InMemory", "OnDisk", "Split"]
Batch = tuple[Tensor, Tensor]  # (B, channels, height, width) float32, (B,) int64
ImageBatches = Batches | FolderBatches


@dataclass(frozen=True)
class InMemory:
    load: Callable[[Path], Images]  # raises FileNotFoundError or ValueError with the expected content and its place
    folder: str  # folder of the data unless --data-dir names another
    padding: int  # pixels of zeros around an image before one of its size is cut out at random
    flip: bool  # True: an image may be mirrored left to right

    def batches(self, args: Namespace, comm: Comm) -> Batches:
        """Return the share of rank ``comm.rank``, by the options in ``args``; nothing is communicated.

        Raises OSError, ValueError, ImportError: the images cannot be read, or are too few.
        """
        padding, flip = (self.padding, self.flip) if args.augment else (0, False)
        images = self.load(args.data_dir)
        varied = (args.image_size, padding, flip, args.shards == "sorted")
        return Batches(images, args.batch_size, share_of(args, comm), args.seed, *varied)


@dataclass(frozen=True)
class OnDisk:
    folder: str

    def batches(self, args: Namespace, comm: Comm) -> FolderBatches:
        how = (args.image_size or SIZE, args.augment, args.threads, args.shards == "sorted")
        return FolderBatches(args.data_dir, args.batch_size, share_of(args, comm), args.seed, *how)


DATASETS: dict[str, InMemory | OnDisk] = {
    "digits": InMemory(small_images.load_scikit_digits, "(comes with scikit-learn)", padding=1, flip=False),
    "fashion-mnist": InMemory(
        small_images.load_fashion_mnist, "/usr/share/datasets/fashion-mnist", padding=2, flip=True
    ),
    "cifar10": InMemory(small_images.load_cifar10, "data", padding=4, flip=True),
    "cifar100": InMemory(small_images.load_cifar100, "data", padding=4, flip=True),
    "imagenet": OnDisk("data/imagenet"),
}
