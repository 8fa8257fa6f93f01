"""Handwritten digits, 1,797 of 8 x 8 pixels in 17 shades of grey, which scikit-learn brings along."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparse_train.data.base import Images, Split

TEST = 360  # images held out: one in five


def load(folder: Path) -> Images:
    """Load the digits, divided into training and test images in a fixed way; ``folder`` is not used.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("--data digits needs scikit-learn: pip install scikit-learn") from None
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (pixels[order] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels[order].astype(np.int64)
    return Images(Split(images[TEST:], labels[TEST:]), Split(images[:TEST], labels[:TEST]), classes=10)
