"""Kernels as NVRTC compiles them: what they move, and those of which tests/kernels has this tier interpret none.

tests/kernels compares all others with NumPy on this interpreter, and test_nvrtc.py there looks at the code of each.
"""

from __future__ import annotations

import numpy as np
import pytest

from ..fakes import fake_cuda
from ..kernels.on_cuda import put, thresholds
from . import device

pytestmark = [
    pytest.mark.full("the emulator runs the same sources in make test"),
    pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value"),
]


@pytest.mark.parametrize("seed", [0, 1])
def test_kernels_that_round_alone_to_eight_bits(interpreted, monkeypatch, seed):
    """In an order of blocks that the seed draws."""
    monkeypatch.setattr(fake_cuda, "SEED", seed)
    indices, values, edges = np.arange(8, dtype=np.int32), np.linspace(-1, 1, 8, dtype=np.float32), np.array([0, 3, 8])
    codes, scales = interpreted.to_int8(put(interpreted, values), put(interpreted, indices), edges)
    found = interpreted.from_int8(codes, scales, edges).get()
    np.testing.assert_allclose(found, values, atol=1 / 127)
    assert {launch.kernel.name for launch in device.RECORD} >= {"to_int8", "from_int8"}


# Bytes of global memory that an entry of float32 costs: what is read and written of vectors, and of pairs
MOVED = {"select": (4, 8), "accumulate_select": (12, 8)}


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("name", MOVED)
def test_bytes_that_a_selection_moves(name, density, interpreted):
    """Where caches keep what is read twice: a vector as it is, and tiles that are read and written in whole sectors."""
    n = 8 * 8192
    x, gradient = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    acc = x + gradient if name == "accumulate_select" else x
    limit, given = thresholds(acc, 1 - density)[1], (x, gradient)[: 1 + (name == "accumulate_select")]
    getattr(interpreted, name)(*(put(interpreted, part) for part in given), limit, n)
    launch, (fixed, of_pairs) = device.RECORD[-1], MOVED[name]
    assert launch.kernel.name == "compact"
    assert fixed < launch.moved() / n <= 1.05 * (fixed + of_pairs * density)
    assert launch.sectors * 32 / n >= launch.moved() / n
