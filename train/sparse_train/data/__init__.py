"""The data sets that training programs know. A new one is a line here and a file with a `load`, or a tree of files."""

from __future__ import annotations

from sparse_train.data import small_images
from sparse_train.data.share import Images, InMemory, OnDisk, Source, Split

__all__ = ["DATASETS", "Images", "Source", "Split"]

DATASETS: dict[str, Source] = {
    "digits": InMemory(small_images.load_scikit_digits, "(comes with scikit-learn)", padding=1, flip=False),
    "fashion-mnist": InMemory(
        small_images.load_fashion_mnist, "/usr/share/datasets/fashion-mnist", padding=2, flip=True
    ),
    "cifar10": InMemory(small_images.load_cifar10, "data", padding=4, flip=True),
    "cifar100": InMemory(small_images.load_cifar100, "data", padding=4, flip=True),
    "imagenet": OnDisk("data/imagenet"),
}
