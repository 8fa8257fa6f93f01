"""CIFAR-10 and CIFAR-100, 60,000 colour images of 32 x 32 pixels, from their archives "python version".

The archives, and their descriptions, are on https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparse_train.data.base import Images, Split

# These build a pickled array. Nothing else is unpickled: a pickle from elsewhere could run any code.
ALLOWED = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__reduce__(np.empty(0))[0],
}


def load_cifar10(folder: Path) -> Images:
    """Read CIFAR-10 from ``cifar-10-python.tar.gz`` or the folder ``cifar-10-batches-py`` that it unpacks to.

    Args:
        folder: either of the two themselves, or the folder that holds one.

    Raises:
        FileNotFoundError: neither is there.
        ValueError: a file is damaged.
    """
    train = [f"data_batch_{i}" for i in range(1, 6)]
    return _load(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", train, "test_batch", b"labels", 10)


def load_cifar100(folder: Path) -> Images:
    """Read CIFAR-100 with its fine classes from ``cifar-100-python`` or its ``.tar.gz``: see `load_cifar10`."""
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
    """Return the bytes of the files ``names``, from the first place that has them."""
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
