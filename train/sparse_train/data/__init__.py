"""The data sets that training programs know. A new one is a line here and a file with a `load`, or a tree of files."""

from __future__ import annotations

from sparse_train.data import cifar, digits, fashion_mnist
from sparse_train.data.base import Images, Split
from sparse_train.data.source import InMemory, OnDisk, Source

__all__ = ["DATASETS", "Images", "Source", "Split"]

DATASETS: dict[str, Source] = {
    "digits": InMemory(digits.load, "(comes with scikit-learn)", padding=1, flip=False),
    "fashion-mnist": InMemory(fashion_mnist.load, "/usr/share/datasets/fashion-mnist", padding=2, flip=True),
    "cifar10": InMemory(cifar.load_cifar10, "data", padding=4, flip=True),
    "cifar100": InMemory(cifar.load_cifar100, "data", padding=4, flip=True),
    "imagenet": OnDisk("data/imagenet"),
}
