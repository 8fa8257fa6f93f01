"""Keys of two integers, in the order of the first, then the second: 16 bytes, whose order as bytes is that.

They travel as whole arrays. Keys are compared as they are, so that no two are taken for one.
"""

from __future__ import annotations

import numpy as np

from sparse_mpi.collectives.dictionary import SAMPLES, Keys, quantile_places
from sparse_mpi.comm import Comm
from sparse_mpi.comm.quantiles import told

BYTES = np.dtype("S16")
SIGN = np.uint64(1 << 63)


def packed(keys: np.ndarray) -> np.ndarray:
    """Return keys ``(m, 2)`` of any integer type as 16 bytes each ``(m,)``, whose order is theirs."""
    numbers = keys.astype(np.uint64 if keys.dtype.kind == "u" else np.int64).view(np.uint64)
    flipped = numbers if keys.dtype.kind == "u" else numbers ^ SIGN
    return np.ascontiguousarray(flipped, ">u8").view(BYTES).reshape(-1)


def unpacked(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return keys ``(m, 2)`` of that type, of which `packed` has made ``keys``."""
    numbers = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2).astype(np.uint64)
    return (numbers if dtype.kind == "u" else (numbers ^ SIGN).view(np.int64)).astype(dtype, copy=False)


class WideKeys(Keys):
    """How keys of 16 bytes travel; see `dictionary.Keys`."""

    def starts(self, keys: np.ndarray, comm: Comm) -> np.ndarray:
        at = told(np.arange(len(keys)), SAMPLES, comm.rank)[3:]
        shown = np.zeros(2 * SAMPLES + 1, np.int64)
        shown[0] = len(keys)
        if len(keys):
            shown[1:] = keys[at].view(np.int64)
        rows = comm.allgather(shown, control=True)
        full = rows[rows[:, 0] > 0]
        if not len(full):
            return np.zeros(comm.size - 1, np.int64)
        # A sample stands for as many keys as its rank has for each of those it shows.
        samples, weights = np.ascontiguousarray(full[:, 1:]).view(BYTES).reshape(-1), np.repeat(full[:, 0], SAMPLES)
        order = np.argsort(samples, kind="stable")
        places = quantile_places(weights[order] / SAMPLES, rows[:, 0])
        return np.searchsorted(keys, samples[order][places])

    def exchanged(self, parts: list[np.ndarray], comm: Comm) -> tuple[np.ndarray, np.ndarray]:
        came, counts = comm.alltoallv(np.concatenate(parts).view(np.int64).reshape(-1, 2), [*map(len, parts)])
        return np.ascontiguousarray(came).view(BYTES).reshape(-1), counts

    def distinct(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(keys, return_inverse=True)

    def shown(self, keys: np.ndarray) -> np.ndarray:
        return keys
