"""All-dimension selection: of every row its quota of the largest magnitudes, and no row left without an entry."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparse_mpi import Layout, kernels
from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels import array
from sparse_mpi.rows import RULES, quotas
from sparse_mpi.select.alldim import AllDim
from sparse_mpi.select.base import most_selected
from sparse_mpi.select.exact import Exact
from sparse_mpi.testing.cases import LAYERS

from .test_rows import lines

LARGE = Layout.of([(40, 300), (40,), (1, 30_000), (8, 6, 3, 3)])  # a row that is searched by histogram, too


def vector(kind, layout, dtype):
    rng = np.random.default_rng(len(kind))
    made = {
        "normal": lambda: rng.standard_normal(layout.size),
        "ties": lambda: rng.integers(-2, 3, layout.size),
        "zeros": lambda: np.zeros(layout.size),
        "nonfinite": lambda: rng.choice([1, 2, np.nan, np.inf, -np.inf], layout.size),
        "skewed": lambda: rng.standard_normal(layout.size) * 10.0 ** rng.integers(-9, 9, layout.size),
    }
    return made[kind]().astype(dtype)


def reference(x, pattern):
    """By loops: every row sorted by magnitude, of equal ones the lower index first."""
    bits = magnitude_bits(x)
    return sorted(
        i
        for t in pattern
        for elements, quota in lines(t)
        for i in sorted(elements, key=lambda i: (-bits[i], i))[:quota]
    )


@pytest.mark.thin(1)  # the loop is in Python
@pytest.mark.parametrize("generic", [False, True], ids=["compiled", "generic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "nonfinite", "skewed"])
@pytest.mark.parametrize("rows", RULES)
def test_selects_what_a_loop_over_the_rows_selects(rows, kind, dtype, generic, monkeypatch):
    if generic:
        monkeypatch.setattr(kernels, "host", lambda: array)
    for layout, dense in ((LAYERS, None), (LAYERS, (1, 8)), (LAYERS, ()), (LARGE, None)):
        chosen, x = AllDim(rows, dense), vector(kind, layout, dtype)
        state = chosen.init(layout, 100)
        for k in (1, layout.size // 10, layout.size // 3, layout.size):  # another k than init's, as in a warm-up
            selected, state = chosen.select(x, k, state)
            assert selected.indices.tolist() == reference(x, quotas(layout, k, rows, dense))
            assert selected.values.tobytes() == x[selected.indices].tobytes()
            assert selected.indices.dtype == np.int32 and selected.size == layout.size
            assert selected.nnz == most_selected(chosen, layout, k) == max(k, chosen.floor(layout))


def test_the_floor_is_one_entry_a_row_and_all_of_the_dense_tensors():
    assert AllDim().floor(LAYERS) == 12 + 30 + 7 + 7 + 1 + 1 + 40 + 5 + 60 + 6
    assert AllDim("axis1").floor(LAYERS) == 12 + 30 + 63 + 7 + 1 + 1 + 40 + 5 + 60 + 6
    assert AllDim(dense=(0,)).floor(LAYERS) == 360 + 1 + 7 + 1 + 1 + 1 + 40 + 5 + 1 + 6
    assert most_selected(Exact(), LAYERS, 3) == 3


@pytest.mark.parametrize("rows", ["output", "axis1"])
@pytest.mark.parametrize("longest", [1 << 22, 40])
def test_a_device_selects_what_the_host_does(device, monkeypatch, rows, longest):
    """From all rows at once, where they are neither strided nor too long; also where all entries are selected."""
    monkeypatch.setattr("sparse_mpi.select.alldim.LONGEST", longest)
    cupy, layout = sys.modules["cupy"], Layout.of([(6, 5, 2), (7,), (3, 50), (4, 1, 3), (2, 2)])
    x = vector("normal", layout, np.float32)
    for k in (1, 60, layout.size - 3, layout.size):
        expected, _ = AllDim(rows=rows).select(x, k, AllDim(rows=rows).init(layout, k))
        found, _ = AllDim(rows=rows).select(cupy.asarray(x), k, AllDim(rows=rows).init(layout, k))
        assert found.indices.get().tolist() == expected.indices.tolist()
        assert found.values.get().tobytes() == expected.values.tobytes()
