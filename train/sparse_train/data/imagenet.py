"""ImageNet, or any images in a tree of class folders: too many for memory, so each is read when its batch is due.

``train/<class>/`` and ``val/<class>/`` hold the images, ``.JPEG``, ``.jpg`` or ``.png``, at any depth. The archives of
ImageNet 2012 are on https://image-net.org/download.php.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparse_train.data.share import Share, shuffled
from sparse_train.packages import needed

SUFFIXES = (".jpeg", ".jpg", ".png")
SIZE = 224  # height and width of a model's input
MIDDLE = 224 / 256  # part of an image's shorter side, in the middle, that is seen in evaluation
AREAS = (0.08, 1.0)  # least and most share of an image in a random cut in training
RATIO = 4 / 3  # the cut's longer side over its shorter at most
TRIALS = 10  # shapes drawn before the middle is taken, because none fits into a very long image
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]  # means of ImageNet's channels, on a scale of 0 to 1
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
TEST_BATCH = 100  # images evaluated at once; bounds memory only

Item = TypeVar("Item")
Result = TypeVar("Result")
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Listing(NamedTuple):
    paths: list[str]
    labels: np.ndarray  # (N,) int64: the class folder's place among all


class FolderBatches:
    """A rank's batches ``(images, labels)`` of a class-folder tree, like the ones of `data.batches.Batches`.

    In training an image is cut out at random (8 to 100 % of its area) and mirrored or not, in evaluation its middle is
    taken; both are resized to ``image_size`` and normalised. An image's random cut depends on ``seed``, the epoch and
    the image alone. Images of the next batch are read while one is used.

    Args:
        folder: holds ``train`` and ``val``.
        seed: seed of the order and the variations; the same on all ranks.
        image_size: height and width of the batches.
        augment: False trains on the middle of images, too.
        threads: the number of images read at once.

    Raises FileNotFoundError: ``train`` or ``val`` is missing, or holds no images in class folders; ValueError: their
    classes differ, or the images are too few; ImportError: Pillow is not installed.
    """

    channels = 3

    def __init__(
        self,
        folder: Path,
        batch_size: int,
        share: Share,
        seed: int,
        image_size: int = SIZE,
        augment: bool = True,
        threads: int = 1,
        by_label: bool = False,
    ) -> None:
        needed("PIL.Image", "--data imagenet")
        self._seed, self.share = seed, share
        self.image_size, self._augment, self._threads = image_size, augment, threads
        names = [_classes(folder, part) for part in ("train", "val")]
        if names[0] != names[1]:
            odd = sorted({*names[0]} ^ {*names[1]})
            raise ValueError(
                f"train and val in {folder} must have the same class folders, but {len(odd)} are in one alone: "
                f"{', '.join(odd[:5])}{', ...' * (len(odd) > 5)}"
            )
        self.classes = len(names[0])
        self._train, self._test = (_listing(folder / part, names[0]) for part in ("train", "val"))
        labels = self._train.labels
        self._epochs = shuffled(len(labels), batch_size, share, seed, labels if by_label else None)
        self.steps = self._epochs.steps

    def train(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's training batches of ``epoch``, from step ``first`` on.

        Raises ValueError: an image cannot be read.
        """

        def read(position: int) -> np.ndarray:
            rng = np.random.default_rng((self._seed, epoch, position + 1)) if self._augment else None
            return read_image(self._train.paths[position], self.image_size, rng)

        return self._batches(self._train, self._epochs.train(epoch, first), read)

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of the images under ``val``, which may be empty.

        Raises ValueError: an image cannot be read.
        """
        steps = self._epochs.test(len(self._test.paths), TEST_BATCH)
        return self._batches(
            self._test, steps, lambda position: read_image(self._test.paths[position], self.image_size)
        )

    def _batches(
        self, listing: Listing, steps: Sequence[np.ndarray], read: Callable[[int], np.ndarray]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for positions, images in zip(steps, ahead(steps, read, self._threads), strict=True):
            yield torch.from_numpy(np.stack(images)), torch.from_numpy(listing.labels[positions])


def ahead(batches: Iterable[Iterable[Item]], read: Callable[[Item], Result], threads: int) -> Iterator[list[Result]]:
    """Yield ``[read(item) for item in batch]`` for each batch, while threads already read the next one."""
    pool = ThreadPoolExecutor(threads)
    reading = ([pool.submit(read, item) for item in batch] for batch in batches)
    try:
        for batch, _ in pairwise(chain(reading, [[]])):
            yield [future.result() for future in batch]
    finally:
        pool.shutdown(cancel_futures=True)


def read_image(path: str, size: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Read an image file as ``(3, size, size)`` float32, normalised.

    With ``rng`` a random part is cut out, and mirrored or not; else the middle is taken.

    Raises ValueError: it cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            box = middle(*image.size) if rng is None else cut(*image.size, rng)
            seen = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot read the image {path} ({error}); fetch it again, or remove it") from None
    pixels = np.asarray(seen, np.float32).transpose(2, 0, 1)
    if rng is not None and rng.random() < 0.5:
        pixels = pixels[:, :, ::-1]
    return (pixels / 255 - MEAN) / DEVIATION


def middle(width: int, height: int) -> Box:
    side = MIDDLE * min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def cut(width: int, height: int, rng: np.random.Generator) -> Box:
    """Draw a nearly square part of an image, at least 8 % of its area, as usual for ImageNet (Szegedy, 2015)."""
    for _ in range(TRIALS):
        area = width * height * rng.uniform(*AREAS)
        ratio = RATIO ** rng.uniform(-1, 1)
        across, down = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if across <= width and down <= height:
            left, top = rng.integers(width - across, endpoint=True), rng.integers(height - down, endpoint=True)
            return float(left), float(top), float(left + across), float(top + down)
    return middle(width, height)


def _classes(folder: Path, part: str) -> list[str]:
    remedy = f"--data-dir must name a folder with images in {part}/<class>/"
    try:
        names = sorted(entry.name for entry in os.scandir(folder / part) if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"no {part} in {folder}; {remedy}") from None
    if not names:
        hint = "; ImageNet's own come unsorted, so sort them into folders named like those of train" * (part == "val")
        raise FileNotFoundError(f"no class folders in {folder / part}; {remedy}{hint}")
    return names


def _listing(folder: Path, classes: Sequence[str]) -> Listing:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [
            os.path.join(place, file)
            for place, _, files in os.walk(folder / name, followlinks=True)
            for file in files
            if file.lower().endswith(SUFFIXES)
        ]
        if not found:
            raise FileNotFoundError(f"no images ({', '.join(SUFFIXES)}) in the class folder {folder / name}")
        paths += sorted(found)
        labels += [label] * len(found)
    return Listing(paths, np.array(labels, np.int64))
