"""Sketches: the same bits from every set of kernels, and what they tell of a norm."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import kernels
from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import SKETCH

from .on_cuda import put

ERROR = (2 * SKETCH) ** -0.5  # relative standard error of an estimated norm: 2.2 %
FLOATS = [np.float32, np.float64]
KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy-tailed": lambda rng, n: rng.standard_t(1.5, n),
    "few": lambda rng, n: rng.standard_normal(n) * (rng.random(n) > 0.99),
    "column": lambda rng, n: rng.standard_normal(n) * (np.arange(n) % 1024 == 7),  # of a matrix 1,024 wide
    "row": lambda rng, n: rng.standard_normal(n) * (np.arange(n) // 1024 == 1),
    "constant": lambda rng, n: np.ones(n),
    "alternating": lambda rng, n: 1.0 - 2 * (np.arange(n) % 2),
}


def vector(n: int, dtype=np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, n]).standard_normal(n).astype(dtype)


@pytest.mark.thin(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 31, 1025, 140_000])
def test_the_same_bits_from_every_set_of_kernels(passes, n, dtype):
    x = vector(n, dtype)
    for seed in (0, 2**32 - 1):
        assert passes.sketch(put(passes, x), seed).tobytes() == array.sketch(x, seed).tobytes()
        assert passes.sketch(put(passes, x)[::2], seed).tobytes() == array.sketch(x[::2], seed).tobytes()


def test_every_entry_is_in_one_bucket_with_either_sign_as_often():
    n, seen = 2048, []
    for i in range(0, n, 8):
        x = np.zeros(n, np.float32)
        x[i] = 2
        found = kernels.of(x).sketch(x, 9)
        (bucket,) = np.flatnonzero(found)
        assert abs(found[bucket]) == 2
        seen.append((bucket, found[bucket]))
    buckets, signs = map(np.array, zip(*seen, strict=True))
    assert abs(np.mean(signs)) < 0.5 and len(np.unique(buckets)) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_the_standard_error(kind):
    """2.2 % of the norm and no bias worth the name, for dense and sparse, random and regular vectors."""
    rng, errors = np.random.default_rng(0), []
    for seed in range(150):
        x = KINDS[kind](rng, 20_000).astype(np.float32)
        errors.append(np.linalg.norm(kernels.of(x).sketch(x, seed)) / np.linalg.norm(x) - 1)
    assert np.std(errors) <= 1.2 * ERROR and abs(np.mean(errors)) < 4 * ERROR / len(errors) ** 0.5


def test_sketches_add_up():
    x, y = vector(3000), vector(3000, seed=1)
    passes = kernels.of(x)
    np.testing.assert_allclose(passes.sketch(x + y, 5), passes.sketch(x, 5) + passes.sketch(y, 5), atol=1e-4)
