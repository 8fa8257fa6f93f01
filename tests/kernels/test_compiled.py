"""What only the compiled kernels have: threads and blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparse_mpi import kernels
from sparse_mpi.arrays import magnitude_bits
from sparse_mpi.kernels import array
from sparse_mpi.kernels.cpu.passes import TILE

from .conftest import on_threads
from .on_cuda import N, inputs, same

cpu = pytest.importorskip("sparse_mpi.kernels.cpu", reason="the compiled kernels need Numba")

FLOATS = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("skew", ["even", "front", "back"])
def test_one_thread_may_find_everything(dtype, skew, many_threads):
    """More in one part than it was given room for: counted on, and fetched by a second scan."""
    x = np.zeros(N, dtype)
    places = {"even": slice(0, N, 40), "front": slice(0, 500), "back": slice(N - 500, N)}[skew]
    x[places] = inputs(dtype)["special"][places]
    threshold = 1
    reached = int((magnitude_bits(x) >= threshold).sum())
    for most in (N, reached + 1, reached, reached - 1, 1):
        assert same(cpu.select(x, threshold, most), array.select(x, threshold, most))
        a, b = x.copy(), x.copy()
        gradient = x / 2
        assert same(
            cpu.accumulate_select(a, gradient, threshold, most), array.accumulate_select(b, gradient, threshold, most)
        )
        assert a.tobytes() == b.tobytes()


def test_far_more_than_wanted_in_the_first_part(many_threads):
    """The first part alone has more than the result has room for, and the next ones have some that would fit."""
    x = np.zeros(60 * TILE, np.float32)
    x[: 21 * TILE] = x[-8 * TILE :] = 1
    for most in (40, 20 * TILE):
        assert cpu.select(x, 1, most) is None
    assert same(cpu.select(x, 1, 29 * TILE), array.select(x, 1, 29 * TILE))


def test_threads_change_no_bit_of_the_moments(monkeypatch):
    x, seen = np.random.default_rng(0).standard_normal(N), set()
    for count in (1, 2, 3):
        on_threads(count, monkeypatch)
        seen.add(cpu.moments(x, 5))
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kernel_set", [cpu, array], ids=["cpu", "array"])
def test_moments_that_overflow_and_those_of_nothing(kernel_set):
    x = np.full(N, 2.8e152)
    found = kernel_set.moments(x, 0)
    assert found.squares == math.inf and math.isfinite(found.total)
    assert kernel_set.moments(x * 1e152, 0).total == math.inf
    assert kernel_set.moments(np.empty(0, np.float32), 0) == kernel_set.moments(np.zeros(9, np.float32), 1) == (0,) * 6
    assert kernel_set.moments(np.zeros(9, np.float32), 0) == (9, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncate_finds_the_kth_of_many(dtype, monkeypatch):
    """With ties and what is not finite."""
    from sparse_mpi.kernels.cpu import pairs

    monkeypatch.setattr(pairs, "MANY", 16)
    x = np.random.default_rng(5).choice([0.0, -0.0, 1.0, -2.0, 3.5, np.inf, np.nan, 1e-40], 99).astype(dtype)
    x[::3] = np.random.default_rng(6).standard_normal(33)
    indices = np.arange(99, dtype=np.int32)
    for k in range(1, 99):
        assert same(cpu.truncate(indices, x, k), array.truncate(indices, x, k))


@pytest.mark.parametrize("kernel_set", [cpu, array], ids=["cpu", "array"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_mark(kernel_set, dtype):
    bits = np.zeros(4, np.uint8)
    for indices in ([0, 9, 10, 31], [9, 30]):
        kernel_set.mark(bits, np.array(indices, dtype))
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == [0, 9, 10, 30, 31]


@pytest.mark.parametrize("value", [0.0, -0.25, np.nan, np.inf])
def test_ties_need_no_histogram(monkeypatch, value):
    """A constant vector: the sample's threshold is the exact one, and nothing as long as the vector is made."""
    monkeypatch.setattr(kernels, "SAMPLED", 1)
    x = np.full(N, value, np.float32)
    monkeypatch.setattr("sparse_mpi.kernels.cpu.counts._histogram_all", None)
    assert kernels.search(x, 20, 25) == (int(magnitude_bits(x)[0]), None)
