"""Keys of two integers, ordered by the first, then the second: 16 bytes of the same order."""

from __future__ import annotations

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.collectives.dictionary import Keys

BYTES = np.dtype("S16")
SIGN = np.uint64(1 << 63)


def packed(keys: np.ndarray) -> np.ndarray:
    """Return keys ``(m, 2)`` of any integer type as 16 bytes each ``(m,)``, in order."""
    numbers = keys.astype(np.uint64 if keys.dtype.kind == "u" else np.int64).view(np.uint64)
    flipped = numbers if keys.dtype.kind == "u" else numbers ^ SIGN
    return np.ascontiguousarray(flipped, ">u8").view(BYTES).reshape(-1)


def unpacked(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Invert `packed`: return keys ``(m, 2)`` of type ``dtype``."""
    numbers = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2).astype(np.uint64)
    return (numbers if dtype.kind == "u" else (numbers ^ SIGN).view(np.int64)).astype(dtype, copy=False)


class WideKeys(Keys):
    def sample(self, keys: np.ndarray, places: np.ndarray) -> np.ndarray:
        return keys[places]

    def packed(self, keys: np.ndarray) -> np.ndarray:
        return keys.view(np.int64).reshape(-1, 2)

    def unpacked(self, buffer: Array, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ascontiguousarray(buffer).view(BYTES).reshape(-1), lengths

    def distinct(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(keys, return_inverse=True)

    def shown(self, keys: np.ndarray) -> np.ndarray:
        return keys
