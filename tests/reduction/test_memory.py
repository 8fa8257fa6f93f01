"""Selection needs little memory beside the vector: the most it ever holds, as NumPy reports it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sparse_mpi import SELECTORS
from sparse_mpi.kernels import threads
from sparse_mpi.sparse import Layout

N, K = 4_000_000, 40_000
SHARE = 0.05  # of the vector, the k selected pairs (0.02) included


def outlier(rng):
    x = rng.standard_normal(N, np.float32)
    x[N // 2] = 1e30
    return x


def front(rng):
    x = rng.standard_normal(N, np.float32)
    x[: N // 4] *= 100  # all in the first thread's part
    return x


VECTORS = {
    "normal": lambda rng: rng.standard_normal(N, np.float32),
    "laplace": lambda rng: rng.laplace(size=N).astype(np.float32),
    "student": lambda rng: rng.standard_t(3, N).astype(np.float32),
    "mostly-zero": lambda rng: rng.standard_normal(N, np.float32) * (rng.random(N, np.float32) > 0.9),
    "constant": lambda rng: np.full(N, -0.25, np.float32),
    "all-zero": lambda rng: np.zeros(N, np.float32),
    "outlier": outlier,
    "front": front,
}


@pytest.fixture(scope="module", params=VECTORS)
def vector(request):
    return VECTORS[request.param](np.random.default_rng(0))


@pytest.mark.parametrize("count", [1, 2], ids="{}-threads".format)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.thin(1)
def test_peak_memory(selector, count, vector, monkeypatch):
    """In the first step, in a steady one, and in one for which a threshold of the last is far too low."""
    pytest.importorskip("numba", reason="the compiled kernels need Numba")
    monkeypatch.setattr(threads, "limit", lambda: count)
    chosen = SELECTORS[selector]()
    state = chosen.init(Layout.of(N), K)
    chosen.select(vector, K, state)  # whatever is compiled or imported on first use
    for scale in (1, 1.01, 3):
        x = vector * np.float32(scale)
        tracemalloc.start()
        try:
            selected, state = chosen.select(x, K, state)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert selected.nnz >= vector.any()
        assert peak < SHARE * x.nbytes
        del selected
