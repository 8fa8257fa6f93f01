"""Fashion-MNIST, 70,000 pieces of clothing of 28 x 28 pixels, from its four IDX files.

Debian's package dataset-fashion-mnist installs them. MNIST has files of the same names and format.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from sparse_train.data.base import Images, Split

UNSIGNED_BYTE = 8  # the only element type of these files: third byte of an IDX file


def load(folder: Path) -> Images:
    """Read the four files in ``folder``: ``train-images-idx3-ubyte.gz`` and so on, or the same unpacked.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or images and labels do not fit together.
    """
    return Images(_split(folder, "train"), _split(folder, "t10k"), classes=10)


def _split(folder: Path, name: str) -> Split:
    images = read_idx(_find(folder, f"{name}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{name}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {name} images {images.shape} and labels {labels.shape} do not fit together; "
            "expected (N, height, width) and (N,)"
        )
    return Split(images[:, None], labels.astype(np.int64))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no {name}.gz in {folder}; install Debian's package dataset-fashion-mnist, "
        "or name the folder that holds the four IDX files with --data-dir"
    )


def read_idx(path: Path) -> np.ndarray:
    """Read the array in an IDX file of unsigned bytes, compressed if ``path`` ends in ``.gz``.

    Raises:
        ValueError: not such a file, or cut short.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError(f"{path} is no IDX file of unsigned bytes: it starts with {content[:4].hex(' ')!r}")
    start = 4 + 4 * content[3]
    shape = tuple(int(d) for d in np.frombuffer(content[4:start], ">u4"))
    if len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is damaged: {shape} announced, {len(content) - start} bytes there; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
