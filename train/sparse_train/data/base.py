"""Data sets of labelled images in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Labelled images."""

    images: np.ndarray  # (N, channels, height, width) uint8
    labels: np.ndarray  # (N,) int64, 0 <= label < classes


class Images(NamedTuple):
    """A data set of images, the same on all ranks."""

    train: Split
    test: Split
    classes: int
