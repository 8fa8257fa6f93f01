"""Zeros are not selected, where a selection may have any length."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SELECTORS, kernels
from sparse_mpi.select.exact import largest
from sparse_mpi.sparse import Layout

from .test_select import NAMES, N, inputs, reference


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [5, 1000, N])
def test_largest_is_top_k_without_zeros(name, dtype, n):
    """Where few entries, all or none are zero, and where the k-th magnitude is one of them."""
    x = inputs(dtype, n)[name]
    for k in {1, max(1, n // 100), n // 3, n - 1, n}:
        expected = [index for index in reference(x, k).tolist() if x[index] != 0]
        assert largest(x, k).indices.tolist() == expected


@pytest.mark.parametrize("selector", ["exact", "threshold"])
def test_few_entries_of_many_zeros_are_found_in_one_pass(monkeypatch, selector):
    """By the threshold that every number but zero reaches."""
    chosen, x = SELECTORS[selector](), np.zeros(N, np.float32)
    state, searches = chosen.init(Layout.of(N), 400), []
    real = kernels.search
    monkeypatch.setattr(kernels, "search", lambda *args, **options: searches.append(args) or real(*args, **options))
    for step in range(4):
        x[step :: N // 30] = -1.5 - step
        selected, state = chosen.select(x, 400, state)
        assert selected.indices.tolist() == np.flatnonzero(x).tolist()
    assert len(searches) == (0 if selector == "threshold" else 4)
