"""Selection needs little memory beside the vector, as NumPy reports it, and keeps to its band on long ones."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sparse_mpi import SELECTORS
from sparse_mpi.kernels import threads
from sparse_mpi.sparse import Layout

from ..select.counts import in_band
from ..select.test_selectors import DISTRIBUTIONS

N, K = 4_000_000, 40_000
SHARE, ROWS = 0.05, 2e-4  # of the vector, the k selected pairs (0.02) included; what selection by rows takes more


def front(rng, n):
    """All in the first thread's part."""
    return rng.standard_normal(n) * np.where(np.arange(n) < n // 4, 100, 1)


VECTORS = DISTRIBUTIONS | {"front": front}


@pytest.fixture(scope="module", params=VECTORS)
def vector(request):
    return VECTORS[request.param](np.random.default_rng(0), N).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2], ids="{}-threads".format)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.thin(1)
def test_peak_memory(selector, count, vector, monkeypatch):
    """In the first step, in a steady one, and in one for which a threshold of the last is far too low."""
    pytest.importorskip("numba", reason="the compiled kernels need Numba")
    monkeypatch.setattr(threads, "limit", lambda: count)
    chosen = SELECTORS[selector]()
    state = chosen.init(Layout.of([(100, N // 100)]), K)
    chosen.select(vector, K, state)  # whatever is compiled or imported on first use
    for scale in (1, 1.01, 3):
        x = vector * np.float32(scale)
        tracemalloc.start()
        try:
            selected, state = chosen.select(x, K, state)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert in_band(chosen, selected.nnz, K, x) and (selected.nnz or not vector.any())
        assert peak < (SHARE + ROWS * chosen.patterned) * x.nbytes
        del selected
