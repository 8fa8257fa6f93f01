"""The data sets that training programs know. A new one is a file with a `load` and a line here."""

from __future__ import annotations

from data import cifar, digits, fashion_mnist
from data.base import Images, Source, Split

__all__ = ["DATASETS", "Images", "Source", "Split"]

DATASETS: dict[str, Source] = {
    "digits": Source(digits.load, "(comes with scikit-learn)", padding=1, flip=False),
    "fashion-mnist": Source(fashion_mnist.load, "/usr/share/datasets/fashion-mnist", padding=2, flip=True),
    "cifar10": Source(cifar.load_cifar10, "data", padding=4, flip=True),
    "cifar100": Source(cifar.load_cifar100, "data", padding=4, flip=True),
}
