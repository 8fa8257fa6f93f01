"""What tests of kernels share: vectors, thresholds, and comparison to the bit, on the host or on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi.arrays import magnitude_bits, to_host
from sparse_mpi.sparse import SparseVector

from ..fakes import fake_cuda

emulated = pytest.mark.parametrize("cuda", ["emulated"], indirect=True)
N = 20_011  # three tiles of a selection, the last one not full


def flushed(x):
    """``x`` with zeros for its subnormal numbers where the emulated processor takes them for that."""
    return np.where(abs(x) < np.finfo(x.dtype).tiny, np.copysign(0, x), x).astype(x.dtype) if fake_cuda.FLUSH else x


def put(kernels, x):
    return kernels.cupy.asarray(x) if hasattr(kernels, "cupy") else np.array(x)


def parts_of(result) -> list:
    return [result.indices, result.values] if isinstance(result, SparseVector) else [result]


def bytes_of(*results) -> list[bytes]:
    """Of arrays and tensors on a device, be it pretended, or on the host."""
    parts = [part for result in results for part in parts_of(result)]
    plain = [part.as_subclass(torch.Tensor).cpu().numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return [to_host(part).tobytes() for part in plain]


def back(x):
    return x.get() if hasattr(x, "get") else x


def inputs(dtype, n=N):
    rng = np.random.default_rng(0)
    special = rng.standard_normal(n)
    special[: min(n, 5)] = [np.nan, -np.inf, np.inf, 0.0, -0.0][: min(n, 5)]
    made = {
        "normal": rng.standard_normal(n),
        "student": rng.standard_t(3, n),
        "mostly-zero": rng.standard_normal(n) * (rng.random(n) > 0.9),
        "constant": np.full(n, -0.25),
        "ties": rng.integers(-3, 4, n) / 4,
        "special": rng.permutation(special),
        "tiny": rng.standard_normal(n) * 1e-42,
    }
    return {name: x.astype(dtype) for name, x in made.items()}


def thresholds(x, *shares):
    """Magnitude bits that these shares of ``x`` do not reach, and the extremes."""
    bits = np.sort(magnitude_bits(x))
    return [0, *(int(bits[int(share * (len(bits) - 1))]) for share in shares), int(np.iinfo(bits.dtype).max)]


def same(found, expected):
    if found is None or expected is None:
        return found is expected
    got = map(back, found)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))
