"""Data sets of small images that fit into memory: digits, Fashion-MNIST, CIFAR-10 and CIFAR-100.

Digits, 1,797 of 8 x 8 pixels in 17 shades of grey, come with scikit-learn. Fashion-MNIST, 70,000 pieces of clothing of
28 x 28 pixels, are four IDX files, which Debian's package dataset-fashion-mnist installs; MNIST has files of the same
names and format. CIFAR's archives "python version", 60,000 colour images of 32 x 32 pixels, and their descriptions are
on https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparse_train.data.share import Images, Split
from sparse_train.packages import needed

TEST = 360  # images held out: one in five
UNSIGNED_BYTE = 8  # the only element type of these files: third byte of an IDX file
# These build a pickled array. Nothing else is unpickled: a pickle from elsewhere could run any code.
ALLOWED = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__reduce__(np.empty(0))[0],
}


def load_scikit_digits(folder: Path) -> Images:
    """Load the digits, divided into training and test images in a fixed way; ``folder`` is not used.

    Raises ImportError: scikit-learn is not installed.
    """
    datasets = needed("sklearn.datasets", "--data digits")
    pixels, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (pixels[order] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels[order].astype(np.int64)
    return Images(Split(images[TEST:], labels[TEST:]), Split(images[:TEST], labels[:TEST]), classes=10)


def load_fashion_mnist(folder: Path) -> Images:
    """Read the four files in ``folder``: ``train-images-idx3-ubyte.gz`` and so on, or the same unpacked.

    Raises FileNotFoundError: a file is missing; ValueError: a file is damaged, or images and labels do not fit
    together.
    """
    return Images(_split(folder, "train"), _split(folder, "t10k"), classes=10)


def _split(folder: Path, name: str) -> Split:
    images = read_idx(_find_idx(folder, f"{name}-images-idx3-ubyte"))
    labels = read_idx(_find_idx(folder, f"{name}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {name} images {images.shape} and labels {labels.shape} do not fit together; "
            "expected (N, height, width) and (N,)"
        )
    return Split(images[:, None], labels.astype(np.int64))


def _find_idx(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no {name}.gz in {folder}; install Debian's package dataset-fashion-mnist, "
        "or name the folder that holds the four IDX files with --data-dir"
    )


def read_idx(path: Path) -> np.ndarray:
    """Read the array in an IDX file of unsigned bytes, compressed if ``path`` ends in ``.gz``.

    Raises ValueError: another kind of file, or cut short.
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


def load_cifar10(folder: Path) -> Images:
    """Read CIFAR-10 from ``cifar-10-python.tar.gz`` or the folder ``cifar-10-batches-py`` that it unpacks to.

    Raises FileNotFoundError: neither is there; ValueError: a file is damaged.
    """
    train = [f"data_batch_{i}" for i in range(1, 6)]
    return _load(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", train, "test_batch", b"labels", 10)


def load_cifar100(folder: Path) -> Images:
    return _load(folder, "cifar-100-python.tar.gz", "cifar-100-python", ["train"], "test", b"fine_labels", 100)


def _load(
    folder: Path, archive: str, unpacked: str, train: Sequence[str], test: str, label_key: bytes, classes: int
) -> Images:
    content = _contents(folder, archive, unpacked, {*train, test})
    batches = {name: _unpickle(data, name, label_key) for name, data in content.items()}
    training = [batches[name] for name in train]
    return Images(
        Split(np.concatenate([b.images for b in training]), np.concatenate([b.labels for b in training])),
        batches[test],
        classes,
    )


def _contents(folder: Path, archive: str, unpacked: str, names: set[str]) -> dict[str, bytes]:
    for place in (folder, folder / unpacked):
        if all((place / name).is_file() for name in names):
            return {name: (place / name).read_bytes() for name in names}
    for path in (folder, folder / archive):
        if path.is_file():
            return _from_archive(path, unpacked, names)
    raise FileNotFoundError(
        f"neither {archive} nor {unpacked} with {', '.join(sorted(names))} in {folder}; get the archive from "
        "https://www.cs.toronto.edu/~kriz/cifar.html and name the folder that holds it with --data-dir"
    )


def _from_archive(path: Path, unpacked: str, names: set[str]) -> dict[str, bytes]:
    content = {}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name = member.name.removeprefix("./").removeprefix(f"{unpacked}/")
                if name in names and (file := tar.extractfile(member)):
                    content[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    if missing := names - content.keys():
        raise ValueError(f"{path} has no {', '.join(sorted(missing))} under {unpacked}/; is it another archive?")
    return content


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module.replace("numpy._core", "numpy.core"), name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in an image file") from None


def _unpickle(data: bytes, name: str, label_key: bytes) -> Split:
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[label_key], np.int64).reshape(len(images))
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"the CIFAR file {name} is damaged ({error}); fetch the archive again") from None
    return Split(images, labels)
