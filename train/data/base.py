"""What a data set is: labelled images in memory, where they come from, and how they may be varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class Source:
    """An entry of `DATASETS`: how to read a data set, and how its training images may be varied."""

    load: Callable[[Path], Images]  # raises FileNotFoundError or ValueError, saying what was expected where
    folder: str  # where it is looked for unless --data-dir says otherwise
    padding: int  # pixels of zeros around an image before one of its size is cut out at random
    flip: bool  # whether an image may be mirrored left to right
